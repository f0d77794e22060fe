"""`Mirrored`: the same value on each replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, final

import jax
import jax.numpy as jnp

from replicax._html import plain
from replicax._jax import is_tracer
from replicax.topology import ReplicaMesh
from replicax.values._arrays import free, is_array, on_first_replica, undivided
from replicax.values._distributed import DistributedValues, listing
from replicax.values._html import components_table, one_row
from replicax.values._operators import ArrayOperators

__all__ = ["Mirrored"]

T = TypeVar("T", covariant=True)


@final
@jax.tree_util.register_pytree_node_class
class Mirrored(ArrayOperators, DistributedValues, Generic[T]):
    """The same value on each replica: what `extended.reduce_to` returns.

    It computes like a plain array.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group + 1.0)
    >>> total = strategy.extended.reduce_to("SUM", x, x)
    >>> total
    Mirrored:{
      0: Array(3., dtype=float32),
      1: Array(3., dtype=float32)
    }
    >>> total + 1
    Array(4., dtype=float32)
    """

    __slots__ = ("_components", "_mesh", "_whole")

    def __init__(self, values: Sequence[T], *, mesh: ReplicaMesh | None = None) -> None:
        """Wrap `values`, one equal copy for each local replica."""
        self._components: tuple[Any, ...] | None = tuple(values)
        self._whole: Any = None
        self._mesh = mesh

    @classmethod
    def from_whole(cls, value: Any, mesh: ReplicaMesh | None = None) -> Mirrored:
        """Wrap `value`, a replicated array or a tracer of one."""
        self = cls((), mesh=mesh)
        self._components, self._whole = None, value
        return self

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The mesh that the copies are placed on; None if the value belongs to no strategy."""
        return self._mesh

    @property
    def whole(self) -> Any:
        """The value as one (replicated) array."""
        if self._whole is None:
            assert self._components is not None
            if self._mesh is None or any(map(is_tracer, self._components)):
                return self._components[0]
            self._whole = self._mesh.assemble_replicated(self._components)
        return self._whole

    @property
    def values(self) -> tuple[T, ...]:
        """The copies of this process's replicas, in replica order, as uncommitted arrays."""
        return tuple(map(free, self.components))

    @property
    def components(self) -> tuple[T, ...]:
        """The copies of this process's replicas, each on its replica's device."""
        if self._components is None:
            if self._mesh is None or is_tracer(self._whole):
                return (self._whole,) * (len(self._mesh.local_replica_ids) if self._mesh else 1)
            self._components = self._mesh.split_replicated(self._mesh.replicate(self._whole))
        return self._components

    def select(self, local_index: int) -> T:
        """The copy of one local replica."""
        return self._whole if is_tracer(self._whole) else self.components[local_index]

    def replaced(self, local_index: int, value: Any) -> Mirrored:
        """This value with another copy for one local replica, while all copies are being replaced."""
        if is_tracer(self._whole):
            return Mirrored.from_whole(value, self._mesh)
        copies = list(self.components)
        copies[local_index] = value
        return Mirrored(copies, mesh=self._mesh)

    def to_plain(self) -> jax.Array:
        """The value as an ordinary array."""
        if self._components is None:
            whole = self._whole
            if self._mesh is not None and isinstance(whole, jax.Array) and not is_tracer(whole):
                whole = self._mesh.replicate(whole)  # a sharded variable's value is not replicated yet
            return on_first_replica(whole)
        first = self._components[0]
        return free(first if self._mesh is None else undivided(first, 0, self._mesh))

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.to_plain())

    def __repr__(self) -> str:
        return listing("Mirrored", self.values, repr)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        if self._whole is not None:
            return one_row("Mirrored", "every replica", self._whole)
        return components_table("Mirrored", self.components, self._mesh)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        arrays = [self._whole] if self._whole is not None else self.components[:1]
        text = plain(self, "Mirrored", [x for x in arrays if is_array(x)])
        return {"text/html": self._repr_html_(), "text/plain": text}

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """One child: the replicated array."""
        if self._whole is None and (self._mesh is None or not all(map(is_array, self.components))):
            return self.components, ("components", self._mesh)
        return (self.whole,), ("whole", self._mesh)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Mirrored:
        """Rebuild from whatever a tree function made of the children."""
        kind, mesh = aux
        return cls(children, mesh=mesh) if kind == "components" else cls.from_whole(children[0], mesh)
