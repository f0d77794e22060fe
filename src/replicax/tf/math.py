"""`tf.math`: the same functions as in `tf`, and a few more."""

from replicax.tf._math import *  # noqa: F403
from replicax.tf._math import __all__ as __all__
from replicax.tf._missing import refuse

__getattr__ = refuse("tf.math", {})
