"""`PerReplica`: a value that differs between replicas.

It holds components or a global array. While a compiled replica function is traced, it holds the *local*
value instead: one trace represents all replicas, so "my replica's value" is the only one there is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax._html import plain
from replicax._jax import is_tracer
from replicax._recording import is_transforming
from replicax.errors import CollectiveError
from replicax.topology import ReplicaMesh
from replicax.values._arrays import free, is_array, is_number, pad_to, undivided
from replicax.values._distributed import DistributedValues, listing
from replicax.values._html import components_table, one_row
from replicax.values._operators import operators_of_only

__all__ = ["Layout", "PerReplica"]

T = TypeVar("T", covariant=True)


@final
class Layout:
    """What a `PerReplica` consists of, apart from arrays. Layouts are interned: compare them with `is`."""

    __slots__ = ("doubt", "kind", "masked", "mesh", "ndim", "scalar", "sizes")

    def __init__(
        self,
        kind: str,
        mesh: ReplicaMesh | None,
        scalar: bool,
        masked: bool = False,
        ndim: int | None = None,
        sizes: tuple[int, ...] | None = None,
        doubt: str = "",
    ) -> None:
        self.kind, self.mesh, self.scalar, self.masked = kind, mesh, scalar, masked
        self.ndim = ndim  # of a global array
        self.sizes = sizes  # the numbers of rows of all replicas of all processes, if shapes differ
        self.doubt = doubt  # why it is unknown which rows are examples

    def __repr__(self) -> str:
        return f"{self.kind} on {self.mesh}"


_cached_layout = functools.lru_cache(maxsize=None)(Layout)


def _layout(
    kind: str,
    mesh: ReplicaMesh | None,
    scalar: bool,
    masked: bool = False,
    ndim: int | None = None,
    sizes: tuple[int, ...] | None = None,
    doubt: str = "",
) -> Layout:
    """The interned `Layout` for this description."""
    return _cached_layout(kind, mesh, scalar, masked, ndim, sizes, doubt)


@final
@operators_of_only
@jax.tree_util.register_pytree_node_class
class PerReplica(DistributedValues, Generic[T]):
    """A different value on each replica: what `strategy.run` returns.

    Combine it with `strategy.reduce` or `strategy.gather`, look at it with `strategy.local_results`, or
    pass it to another `strategy.run`. If this process has only one of several replicas, it behaves like
    that replica's value: `float(loss)`, `loss.numpy()`.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group * 10)
    >>> ids
    PerReplica:{
      0: Array(0, dtype=int32),
      1: Array(10, dtype=int32)
    }
    >>> strategy.reduce("SUM", ids, axis=None)
    Array(10, dtype=int32)
    """

    __slots__ = ("_array", "_components", "_layout", "_mask", "_padded", "known_sum")

    def __init__(
        self,
        values: Sequence[T],
        *,
        mesh: ReplicaMesh | None = None,
        sizes: tuple[int, ...] | None = None,
    ) -> None:
        """Wrap `values`, one per local replica.

        `sizes` are the numbers of rows of all replicas of all processes, if known to differ.
        """
        self._components: tuple[Any, ...] | None = tuple(values)
        self._array: Any = None
        self._padded: Any = None
        self._mask: PerReplica | Callable[[], PerReplica | str | None] | None = None
        self._layout = _layout("components", mesh, False, sizes=sizes)
        self.known_sum: Any = None

    @classmethod
    def from_global(cls, array: Any, mesh: ReplicaMesh | None, *, scalar: bool) -> PerReplica:
        """The value whose component i is the i-th shard of `array`."""
        return cls.from_layout(array, _layout("global", mesh, scalar, ndim=array.ndim))

    @classmethod
    def from_padded(cls, array: Any, mesh: ReplicaMesh, sizes: tuple[int, ...]) -> PerReplica:
        """The value whose component i is the first `sizes[i]` rows of the i-th shard of `array`.

        One array can hold replicas with different numbers of rows only if they are padded.
        """
        return cls.from_layout(array, _layout("global", mesh, False, ndim=array.ndim, sizes=sizes))

    @classmethod
    def sliced_from(cls, array: Any, mesh: ReplicaMesh, shapes: Sequence[tuple[int, ...]]) -> PerReplica:
        """The value whose component i is the i-th shard of a traced `array`, sliced to `shapes[i]`."""
        size = array.shape[0] // mesh.num_replicas
        shards = [array[i * size : (i + 1) * size] for i in range(mesh.num_replicas)]
        starts = [tuple(map(slice, shape)) for shape in shapes]
        self = cls([shard[start] for shard, start in zip(shards, starts, strict=True)], mesh=mesh)
        self._padded = array
        return self

    @classmethod
    def from_layout(cls, array: Any, layout: Layout) -> PerReplica:
        """Wrap one array that is placed according to `layout`."""
        self = object.__new__(cls)
        self._components, self._array, self._layout, self._mask = None, array, layout, None
        self.known_sum = self._padded = None
        return self

    @classmethod
    def from_local(cls, value: Any, mesh: ReplicaMesh | None) -> PerReplica:
        """Wrap `value`, a compiled replica's own value."""
        return cls.from_layout(value, _layout("local", mesh, False))

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The mesh that the components are placed on; None if the value belongs to no strategy."""
        return self._layout.mesh

    @property
    def layout(self) -> Layout:
        """How the array is placed on the devices, if the value is one array."""
        return self._layout

    def on(self, mesh: ReplicaMesh) -> PerReplica:
        """This value, assigned to `mesh` if it belongs to no strategy; raises if it is on another mesh."""
        has, needs = self.num_components, len(mesh.local_replica_ids)
        if self.mesh is not None and self.mesh != mesh:
            raise CollectiveError(
                f"A per-replica value of another strategy, with the replicas of {self.mesh}, was used with "
                f"the replicas of {mesh}. Distribute a batch with the strategy that runs the step; reduce "
                "or gather a result with its own strategy first."
            )
        if has is not None and has != needs and not (has == mesh.num_replicas and self.is_traced_apart):
            # A program has the components of all processes.
            raise CollectiveError(
                f"A PerReplica value with {has} components was used for {needs} replicas. Make it with the "
                "strategy that uses it, for example with `strategy.distribute_values_from_function`."
            )
        if self.mesh is None:
            old = self._layout
            self._layout = _layout(old.kind, mesh, old.scalar, old.masked, old.ndim, old.sizes, old.doubt)
        return self

    @property
    def example_mask(self) -> PerReplica | None:
        """Which rows are examples, if this is a padded batch or was computed from one row by row.

        Otherwise None. The mask has one entry per row, so it can be passed to `strategy.run` along with the
        batch.
        """
        mask = self.mask
        return None if mask is None else mask.with_mask(mask)

    @property
    def mask(self) -> PerReplica | None:
        """`example_mask` as the batch holds it: the identity of its array tells batches apart."""
        self._settle()
        assert not callable(self._mask)
        return self._mask

    @property
    def doubt(self) -> str:
        """Why it is unknown which rows are examples; empty if it is known."""
        self._settle()
        return self._layout.doubt

    def _settle(self) -> None:
        if callable(self._mask):
            found = self.with_mask(self._mask())
            self._mask, self._layout = found._mask, found._layout

    def with_mask(self, mask: PerReplica | str | None) -> PerReplica:
        """This value with a mask that tells which rows are examples.

        None means all rows. A string is the reason why it is unknown.
        """
        masked, old = self._copy(), self._layout
        doubt = mask if isinstance(mask, str) else ""
        masked._mask = None if isinstance(mask, str) else mask
        has = masked._mask is not None
        masked._layout = _layout(old.kind, self.mesh, old.scalar, has, old.ndim, old.sizes, doubt)
        return masked

    def with_mask_from(self, find: Callable[[], PerReplica | str | None]) -> PerReplica:
        """`with_mask(find())`, except that `find` is called only when the mask is needed."""
        masked = self._copy()
        masked._mask = find
        return masked

    def _copy(self) -> PerReplica:
        copy = PerReplica((), mesh=self.mesh)
        copy._components, copy._array, copy._padded = self._components, self._array, self._padded
        copy._layout, copy.known_sum = self._layout, self.known_sum
        return copy

    @property
    def is_local(self) -> bool:
        """Whether this means "each replica's own value" inside a compiled replica function."""
        return self._layout.kind == "local"

    @property
    def num_components(self) -> int | None:
        """The number of components it was made from; None for a global array or a local value."""
        return None if self._components is None else len(self._components)

    @property
    def is_global(self) -> bool:
        """Whether it is one global array."""
        return self._layout.kind == "global"

    @property
    def is_global_tracer(self) -> bool:
        """Whether it is one global array of a program being traced."""
        return not self.is_local and is_tracer(self._array)

    @property
    def is_traced_apart(self) -> bool:
        """Whether the components are tracers, in a program that traces one replica after the other."""
        return self._array is None and any(map(is_tracer, self._components or ()))

    @property
    def values(self) -> tuple[T, ...]:
        """The components of this process's replicas, in replica order, as uncommitted arrays."""
        components, mesh = self.components, self.mesh
        if mesh is not None and mesh.num_logical_devices > 1:
            components = tuple(undivided(part, i, mesh) for i, part in enumerate(components))
        return tuple(map(free, components))

    @property
    def components(self) -> tuple[T, ...]:
        """The components of this process's replicas, each on its replica's device."""
        if self._components is None:
            self._components = self._split()
        return self._components

    def _split(self) -> tuple[Any, ...]:
        if self.is_local:
            assert self.mesh is not None
            stacked = lax.all_gather(self._array, self.mesh.axis_name)
            return tuple(stacked[i] for i in range(stacked.shape[0]))
        if is_tracer(self._array) or isinstance(self._array, np.ndarray):  # jax.device_get made it
            assert self.mesh is not None
            stacked = self._array
            if not self._layout.scalar:
                stacked = stacked.reshape(self.mesh.num_replicas, -1, *stacked.shape[1:])
            return self._without_padding([stacked[i] for i in range(self.mesh.num_replicas)], None)
        assert self.mesh is not None
        parts = self.mesh.split(self._array, scalar=self._layout.scalar)
        return self._without_padding(parts, self.mesh.local_replica_ids)

    def _without_padding(self, parts: Sequence[Any], replicas: Sequence[int] | None) -> tuple[Any, ...]:
        """The rows of `parts`, which belong to `replicas`, without the padding of `from_padded`."""
        sizes = self._layout.sizes
        if sizes is None:
            return tuple(parts)
        counts = sizes if replicas is None else [sizes[i] for i in replicas]
        pairs = zip(parts, counts, strict=True)
        return tuple(part if part.shape[0] == count else part[:count] for part, count in pairs)

    @property
    def only(self) -> Any:
        """The value of this process's replica if it has only one of several; else None."""
        mesh = self.mesh
        if mesh is None or mesh.is_local or len(mesh.local_replica_ids) != 1:
            return None
        if self.is_local or self.is_global_tracer or self.is_traced_apart:
            return None
        return self.values[0]

    def select(self, local_index: int) -> T:
        """The component of one local replica; in a compiled replica, the replica's own value."""
        return self._array if self.is_local else self.components[local_index]

    def replaced(self, local_index: int, value: Any) -> PerReplica:
        """This value with another component for one local replica."""
        if self.is_local:
            return PerReplica.from_local(value, self.mesh)
        components = list(self.components)
        components[local_index] = value
        return PerReplica(components, mesh=self.mesh)

    @property
    def uniform(self) -> jax.ShapeDtypeStruct | None:
        """The common shape and dtype of all components, or None if they differ or are not numbers."""
        if self._layout.sizes is not None:
            return None
        if self._components is None:
            shape = self._array.shape
            if not self.is_local:
                assert self.mesh is not None
                count = self.mesh.num_replicas
                shape = () if self._layout.scalar else (shape[0] // count, *shape[1:])
            return jax.ShapeDtypeStruct(shape, self._array.dtype)
        if not self._components or not all(map(is_number, self._components)):
            return None
        kinds = {(np.shape(c), jnp.result_type(c)) for c in self._components}
        if len(kinds) > 1:
            return None
        shape, dtype = kinds.pop()
        return jax.ShapeDtypeStruct(shape, dtype)

    def to_global(self, mesh: ReplicaMesh) -> tuple[Any, bool]:
        """The global array on `mesh`, and whether the components are scalars; requires `uniform`."""
        if self._array is None:
            assert self._components is not None
            scalar = np.ndim(self._components[0]) == 0
            if self.is_traced_apart or is_transforming():
                join = jnp.stack if scalar else jnp.concatenate
                return join([jnp.asarray(c) for c in self._components]), scalar
            components = [c if is_array(c) else jnp.asarray(c) for c in self._components]
            self._array = mesh.assemble(components)
            old = self._layout
            self._layout = _layout("global", mesh, scalar, old.masked, self._array.ndim, doubt=old.doubt)
        return self._array, self._layout.scalar

    def padded(self) -> Any:
        """One global array with each component padded to the largest shape; None if that is impossible.

        The inverse of `sliced_from`.
        """
        if self._padded is not None:
            return self._padded
        if not all(map(is_array, self.components)):
            return None
        arrays = list(map(jnp.asarray, self.components))
        if len({(array.ndim, array.dtype) for array in arrays}) > 1:
            return None
        shape = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
        return jnp.concatenate([pad_to(array, shape) for array in arrays])

    def __repr__(self) -> str:
        if self.is_local:
            return f"PerReplica:{{each replica: {self._array!r}}}"
        if self._components is None and not is_array(self._array):  # a function of jax.tree made it
            return f"PerReplica:{{all replicas together: {self._array!r}}}"
        return listing("PerReplica", self.values, repr)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        if self.is_local:
            return one_row("PerReplica", "each replica", self._array)
        if self._components is None and (is_transforming() or not is_array(self._array)):
            return one_row("PerReplica", "all replicas together", self._array)
        return components_table("PerReplica", self.components, self.mesh)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        arrays = [self._array] if self._array is not None else self._components or ()
        text = plain(self, "PerReplica", [x for x in arrays if is_array(x)])
        return {"text/html": self._repr_html_(), "text/plain": text}

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Children: the global array if the components have one shape and dtype, else the components."""
        self._settle()
        mesh = self.mesh
        if self._array is None and mesh is not None and self._all_arrays():
            self.to_global(mesh)
        children = self.components if self._array is None else (self._array,)
        return (children if self._mask is None else (*children, self._mask)), self._layout

    def _all_arrays(self) -> bool:
        arrays = all(map(is_array, self._components or ()))
        shape = self.uniform if arrays else None
        return shape is not None and 0 not in shape.shape

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> PerReplica:
        """Rebuild from whatever a tree function made from the children."""
        *values, mask = children if aux.masked else (*children, None)
        if aux.sizes is not None and aux.kind == "global" and is_tracer(values[0]):
            # In a program, replicas with different shapes are separate arrays.
            return cls.sliced_from(values[0], aux.mesh, [(n, *values[0].shape[1:]) for n in aux.sizes])
        if aux.ndim is not None and getattr(values[0], "ndim", 0) > aux.ndim:
            raise CollectiveError(
                "A per-replica value came out of lax.scan, vmap, jnp.stack or a similar function with one "
                "axis more, so that its first axis is not that of the replicas. Put the loop into the "
                "replica function, or reduce or gather the value inside of the loop."
            )
        self = cls(values, mesh=aux.mesh) if aux.kind == "components" else cls.from_layout(values[0], aux)
        self._layout, self._mask = aux, mask
        if getattr(getattr(mask, "_array", None), "dtype", jnp.bool_) != jnp.bool_:
            raise CollectiveError(
                "jax.tree.map has changed the mask of a padded batch, which is one of its leaves. Map "
                "inside of the replicas: `strategy.run(lambda x: jax.tree.map(fn, x), args=(batch,))`."
            )
        return self
