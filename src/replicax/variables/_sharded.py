"""The layout of sharded variables: each replica holds one part of the value, a shard.

One axis is split into as many shards as there are replicas. If its size is not a multiple of their number,
the array in the store is padded with zeros. Reading gives the whole value: a compiled replica gathers the
shards where it reads the variable, so that the whole value exists only while it is used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from replicax._jax import is_tracer
from replicax.collectives import Communicator
from replicax.contexts import current
from replicax.errors import VariableError
from replicax.topology import ReplicaMesh
from replicax.values import IndexedSlices, Mirrored, PerReplica
from replicax.variables._aggregation import check_scatter, write_combined
from replicax.variables._layout import MAX_SPLIT_AXES, OnMesh
from replicax.variables._spec import VariableSpec
from replicax.variables._writes import Write

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["Shard", "Sharded", "axis_to_shard"]


def axis_to_shard(shape: Sequence[int], num_shards: int) -> int:
    """The axis of an array that is split: the largest one that divides evenly, or else the largest."""
    axes = range(min(len(shape), MAX_SPLIT_AXES))
    even = [axis for axis in axes if shape[axis] % num_shards == 0]
    return max(even or axes, key=lambda axis: shape[axis])


@final
class Sharded(OnMesh):
    """A part of the value on each replica.

    Args:
        communicator: of the strategy.
        axis: the axis that is split.
        size: the size of that axis.
    """

    type_name = "ShardedVariable"
    is_split = True

    def __init__(self, communicator: Communicator, axis: int, size: int) -> None:
        super().__init__(communicator)
        self.split_axis, self._size = axis, size
        self._padding = -size % communicator.num_replicas

    # The array in the store.

    def place(self, value: Any) -> Any:
        return self.mesh.put(self._padded(value), self.sharding(self.mesh))

    def array_shape(self, spec: VariableSpec) -> tuple[int, ...]:
        return self._with_size(spec.shape, self._size + self._padding)

    def sharding(self, mesh: ReplicaMesh) -> Sharding:
        return NamedSharding(mesh.mesh, PartitionSpec(*[None] * self.split_axis, mesh.axis_name))

    def wrap(self, array: Any, scalar: bool) -> Mirrored:
        return Mirrored.from_whole(self._unpadded(array), self.mesh)

    def unwrap(self, cell: Any) -> Any:
        array = self._padded(cell.whole)
        return array if is_tracer(array) else self.mesh.put(array, self.sharding(self.mesh))

    def _with_size(self, shape: Sequence[int], size: int) -> tuple[int, ...]:
        return (*shape[: self.split_axis], size, *shape[self.split_axis + 1 :])

    def _padded(self, value: Any) -> Any:
        if not self._padding:
            return value
        return jnp.pad(
            value, [(0, self._padding if i == self.split_axis else 0) for i in range(value.ndim)]
        )

    def _unpadded(self, array: Any) -> Any:
        return lax.slice_in_dim(array, 0, self._size, axis=self.split_axis) if self._padding else array

    # In a compiled replica.

    def part_shape(self, spec: VariableSpec) -> tuple[int, ...]:
        return self._with_size(spec.shape, (self._size + self._padding) // self.mesh.num_replicas)

    def part_cell(self, part: Any, spec: VariableSpec) -> Any:
        return Shard(part, self)

    def part(self, cell: Any) -> Any:
        if isinstance(cell, Shard):
            return cell.array
        padded = self._padded(cell.whole)
        size = padded.shape[self.split_axis] // self.mesh.num_replicas
        return lax.dynamic_slice_in_dim(
            padded, lax.axis_index(self.mesh.axis_name) * size, size, self.split_axis
        )

    def gathered(self, shard: Any) -> Any:
        """The whole value, from each replica's shard."""
        return self._unpadded(lax.all_gather(shard, self.mesh.axis_name, axis=self.split_axis, tiled=True))

    def zeros(self, shard: Any) -> Any:
        """Zeros of the shape of the whole value."""
        return jnp.zeros(self._with_size(shard.shape, self._size), shard.dtype)

    @functools.cached_property
    def of_slices(self) -> Sharded:
        """The layout of one index of the first axis, if another axis is split."""
        assert self.split_axis
        return Sharded(self._communicator, self.split_axis - 1, self._size)

    def summed(self, value: Any) -> Any:
        """This replica's shard of the sum of `value` over the replicas."""
        return lax.psum_scatter(
            self._padded(value), self.mesh.axis_name, scatter_dimension=self.split_axis, tiled=True
        )

    # Reading and writing.

    def read_copy(self, variable: Variable, local_index: int) -> Any:
        return self._cell(variable).select(local_index)

    def read(self, variable: Variable) -> Any:
        return self._cell(variable).to_plain()

    def held(self, variable: Variable) -> Any:
        return self._cell(variable)

    def _cell(self, variable: Variable) -> Mirrored:
        """The current value, in a new cell: one that stays would keep the gathered value."""
        return Mirrored.from_whole(current().frame.load(variable).whole, self.mesh)

    def check_method(self, variable: Variable, method: str) -> None:
        check_scatter(variable, method)

    def write_in_replica(self, variable: Variable, replica: Any, write: Write) -> Any:
        return write_combined(variable, replica, write)

    def write_copy(self, variable: Variable, local_index: int, write: Write) -> Any:
        return self.write(variable, write)

    def write(self, variable: Variable, write: Write) -> Mirrored:
        frame, operand = current().frame, self._operand(variable, write, write.operand)
        with frame.updating(variable):
            old = frame.load(variable)
            old = jax.ShapeDtypeStruct(variable.shape, variable.dtype) if write.replaces else old.whole
            new = variable._fitted(write.applied_to(old, operand))
            frame.store(variable, Mirrored.from_whole(new, self.mesh))
        return Mirrored.from_whole(new, self.mesh)

    def _operand(self, variable: Variable, write: Write, value: Any) -> Any:
        """What is written, as one array on the devices of the variable."""
        if isinstance(value, PerReplica):
            raise VariableError(
                f"{write.name} of the sharded variable {variable.name!r} got a PerReplica value. Reduce it "
                "first (`strategy.reduce` or `extended.reduce_to`), or write it in a replica function with "
                "an aggregation."
            )
        if isinstance(value, IndexedSlices):
            values, indices = (self._operand(variable, write, x) for x in (value.values, value.indices))
            return IndexedSlices(values, indices, value.dense_shape)
        if isinstance(value, Mirrored):
            return value.whole
        return value if is_tracer(value) else self.mesh.replicate(value)


@final
class Shard:
    """The cell of a sharded variable in a compiled replica: its shard, gathered when it is read."""

    __slots__ = ("array", "layout")

    def __init__(self, array: Any, layout: Sharded) -> None:
        self.array, self.layout = array, layout

    @property
    def mesh(self) -> ReplicaMesh:
        """The devices of the shards."""
        return self.layout.mesh

    @property
    def whole(self) -> Any:
        """The whole value."""
        return self.layout.gathered(self.array)
