"""`tf.types.experimental.distributed`: types of distributed values, for `isinstance`."""

from typing import Any

from replicax.tf._missing import refuse
from replicax.values import DistributedValues, PerReplica
from replicax.values import Mirrored as _Mirrored
from replicax.variables import MirroredVariable

__all__ = ["DistributedValues", "Mirrored", "PerReplica"]


class _MirroredMeta(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Mirrored | MirroredVariable)


class Mirrored(metaclass=_MirroredMeta):
    """A value or a variable that is the same on all replicas; for `isinstance` only."""


__getattr__ = refuse("tf.types.experimental.distributed", {})
