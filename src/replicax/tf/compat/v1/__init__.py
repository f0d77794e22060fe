"""`tf.compat.v1`: the strategies of version 1, without graphs and sessions."""

from replicax.compat.v1 import ConfigProto
from replicax.tf._missing import OF_COMPAT_V1, refuse
from replicax.tf.compat.v1 import distribute

__all__ = ["ConfigProto", "distribute", "enable_eager_execution", "enable_v2_behavior"]


def enable_eager_execution() -> None:
    """No effect: every call runs immediately."""


def enable_v2_behavior() -> None:
    """No effect: this is how Replicax behaves."""


__getattr__ = refuse("tf.compat.v1", OF_COMPAT_V1)
