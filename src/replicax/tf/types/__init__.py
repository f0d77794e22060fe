"""`tf.types`: names for annotations and `isinstance`."""

from replicax.tf._missing import refuse
from replicax.tf.types import experimental

__all__ = ["experimental"]

__getattr__ = refuse("tf.types", {})
