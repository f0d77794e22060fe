"""The base of values that live on several replicas, `PerReplica` and `Mirrored`.

Both have two faces, and turn one into the other only when asked:

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
    """A leaf of Replicax's structures, although it may be a node for `jax.tree`."""

    __slots__ = ()

    @property
    def is_distributed(self) -> bool:
        """Whether it has a component for each replica, although it is not a `DistributedValues` itself."""
        return False


class _DistributedMeta(abc.ABCMeta):
    """Lets variables with a copy on each replica count as `DistributedValues`, and others not."""

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
        """The component of one local replica; inside a compiled replica, that replica's own."""

    @property
    @abc.abstractmethod
    def mesh(self) -> ReplicaMesh | None:
        """The devices that the components are on; None for values that belong to no strategy."""


def listing(name: str, components: Sequence[Any], show: Callable[[Any], str]) -> str:
    lines = ",\n".join(f"  {i}: {show(value)}" for i, value in enumerate(components))
    return f"{name}:{{\n{lines}\n}}"
