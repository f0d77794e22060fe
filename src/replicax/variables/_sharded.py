"""The layout of sharded variables: each replica holds one part of the value, a shard.

One axis is split into as many shards as there are replicas. If its size is not a multiple of their number,
the array in the store is padded with zeros. Reading returns the full value: a compiled replica gathers the
shards where it reads the variable, so the full value exists only while it is used.

If the variable also has a partition, every shard is sharded over the devices of its replica, along other
axes. A device then exchanges only its own part with the same device of the other replicas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from replicax.collectives import Communicator
from replicax.topology import ReplicaMesh
from replicax.variables._divided import Divided
from replicax.variables._layout import MAX_SPLIT_AXES
from replicax.variables._spec import VariableSpec

__all__ = ["Shard", "Sharded", "axis_to_shard"]


def axis_to_shard(
    shape: Sequence[int], num_shards: int, partition: Sequence[int] | None = None
) -> int | None:
    """The axis to split: the largest one that divides evenly, else the largest.

    Partitioned axes are not considered; None if no other axis remains.
    """
    whole = (1,) * len(shape) if partition is None else partition
    axes = [axis for axis in range(min(len(shape), MAX_SPLIT_AXES)) if whole[axis] == 1]
    if not axes:
        return None
    even = [axis for axis in axes if shape[axis] % num_shards == 0]
    return max(even or axes, key=lambda axis: shape[axis])


@final
class Sharded(Divided):
    """A part of the value on each replica.

    Args:
        communicator: the strategy's communicator.
        axis: the axis that is split.
        size: the size of that axis.
        partition: the number of parts along each axis for the devices of a replica; None for copies.
        gather_again: whether the value is gathered again in the backward pass.
    """

    is_split = True

    def __init__(
        self,
        communicator: Communicator,
        axis: int,
        size: int,
        partition: tuple[int, ...] | None = None,
        *,
        gather_again: bool = True,
    ) -> None:
        super().__init__(communicator)
        self._partition, self.gather_again = partition, gather_again
        self._parts = PartitionSpec() if partition is None else self.mesh.partition_spec(partition)
        self.split_axis, self._size = axis, size
        self._padding = -size % communicator.num_replicas

    # The array in the store.

    def array_shape(self, spec: VariableSpec) -> tuple[int, ...]:
        return self._with_size(spec.shape, self._size + self._padding)

    def sharding(self, mesh: ReplicaMesh) -> Sharding:
        names = [*self._parts, *[None] * (self.split_axis + 1 - len(self._parts))]
        names[self.split_axis] = mesh.axis_name
        return NamedSharding(mesh.mesh, PartitionSpec(*names))

    def _with_size(self, shape: Sequence[int], size: int) -> tuple[int, ...]:
        return (*shape[: self.split_axis], size, *shape[self.split_axis + 1 :])

    def padded(self, value: Any) -> Any:
        if value.shape[self.split_axis] != self._size:
            return value  # the view of an array that several processes share
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

    def shard(self, cell: Any) -> Shard | None:
        return cell if isinstance(cell, Shard) else None

    def part(self, cell: Any) -> Any:
        if isinstance(cell, Shard):
            return cell.array
        padded = self.padded(cell.whole)
        size = padded.shape[self.split_axis] // self.mesh.num_replicas
        return lax.dynamic_slice_in_dim(
            padded, lax.axis_index(self.mesh.axis_name) * size, size, self.split_axis
        )

    def gathered(self, part: Any) -> Any:
        gather = functools.partial(
            lax.all_gather, axis_name=self.mesh.axis_name, axis=self.split_axis, tiled=True
        )
        return self._unpadded(self._on_each_device(gather, part))

    def zeros(self, shard: Any) -> Any:
        """Zeros with the shape of the full value."""
        return jnp.zeros(self._with_size(shard.shape, self._size), shard.dtype)

    @property
    def has_slices(self) -> bool:
        """Whether the first axis is not split, so that each replica has a part of every index."""
        return self.split_axis > 0 and (self._partition is None or self._partition[0] == 1)

    @functools.cached_property
    def of_slices(self) -> Sharded:
        """The layout of one index of the first axis, if that is not split."""
        assert self.has_slices
        partition = self._partition and self._partition[1:]
        return Sharded(
            self._communicator,
            self.split_axis - 1,
            self._size,
            partition,
            gather_again=self.gather_again,
        )

    def summed(self, value: Any) -> Any:
        scatter = functools.partial(
            lax.psum_scatter,
            axis_name=self.mesh.axis_name,
            scatter_dimension=self.split_axis,
            tiled=True,
        )
        return self._on_each_device(scatter, self.padded(value))

    def _on_each_device(self, collective: Callable[[Any], Any], value: Any) -> Any:
        """Call a collective on each device's own part; XLA would gather the parts first."""
        if not self._parts:
            return collective(value)
        mapped = jax.shard_map(
            collective,
            in_specs=self._parts,
            out_specs=self._parts,
            axis_names=set(self.mesh.logical_axes),
            check_vma=False,
        )
        return mapped(value)


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
