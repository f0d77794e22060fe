"""`tf.compat.v1`: the v1 strategies, without graphs and sessions."""

from replicax.compat.v1 import ConfigProto
from replicax.tf._missing import OF_COMPAT_V1, refuse
from replicax.tf.compat.v1 import distribute

__all__ = ["ConfigProto", "distribute", "enable_eager_execution", "enable_v2_behavior"]


def enable_eager_execution() -> None:
    """Do nothing: every call runs immediately."""


def enable_v2_behavior() -> None:
    """Do nothing: Replicax always behaves like version 2."""


__getattr__ = refuse("tf.compat.v1", OF_COMPAT_V1)
