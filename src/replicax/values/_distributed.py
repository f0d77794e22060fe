"""The base class of values that live on several replicas, `PerReplica` and `Mirrored`.

Both have two representations, and convert between them only on demand:

* the *components*, one value per local replica, which eager code works with;
* the *global array* on the strategy's mesh, which compiled programs take and return.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from replicax.topology import ReplicaMesh

__all__ = ["DistributedValues", "Leaf", "listing"]


class Leaf:
    """A leaf of Replicax's structures, even if `jax.tree` sees a node."""

    __slots__ = ()

    @property
    def is_distributed(self) -> bool:
        """Whether it has a component for each replica without being a `DistributedValues` subclass."""
        return False


class _DistributedMeta(abc.ABCMeta):
    """Makes variables with a copy on each replica instances of `DistributedValues`."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if type.__instancecheck__(cls, instance):
            return True
        return cls is DistributedValues and isinstance(instance, Leaf) and instance.is_distributed


class DistributedValues(Leaf, metaclass=_DistributedMeta):
    """A value with one component per replica: the base of `PerReplica`, `Mirrored` and variables.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group)
    >>> isinstance(x, rx.DistributedValues)
    True
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def values(self) -> tuple[Any, ...]:
        """The components of this process's replicas, in replica order."""

    @abc.abstractmethod
    def select(self, local_index: int) -> Any:
        """The component of one local replica; in a compiled replica, the replica's own value."""

    @property
    @abc.abstractmethod
    def mesh(self) -> ReplicaMesh | None:
        """The mesh that the components are placed on; None if the value belongs to no strategy."""


def listing(name: str, components: Sequence[Any], show: Callable[[Any], str]) -> str:
    lines = ",\n".join(f"  {i}: {show(value)}" for i, value in enumerate(components))
    return f"{name}:{{\n{lines}\n}}"
