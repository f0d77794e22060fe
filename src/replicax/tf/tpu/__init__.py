"""`tf.tpu`."""

from replicax.tf._missing import refuse
from replicax.tf.tpu import experimental

__all__ = ["experimental"]

__getattr__ = refuse("tf.tpu", {"XLAOptions": "XLA_FLAGS"})
