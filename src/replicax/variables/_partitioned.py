"""The layout of partitioned variables: each replica has the value, sharded over its logical devices.

A compiled replica computes with it as with any array, and XLA partitions the computation: the product with
a matrix whose columns are sharded has sharded columns, and so on.
"""

from __future__ import annotations

from typing import Any, final

from jax import lax
from jax.sharding import NamedSharding, Sharding

from replicax.collectives import Communicator
from replicax.topology import ReplicaMesh
from replicax.values import Mirrored
from replicax.variables._divided import Divided

__all__ = ["Partitioned"]


@final
class Partitioned(Divided):
    """One equal copy on each replica, sharded over the replica's devices.

    Args:
        communicator: the strategy's communicator.
        partition: the number of parts along each axis.
    """

    def __init__(self, communicator: Communicator, partition: tuple[int, ...]) -> None:
        super().__init__(communicator)
        self._parts = self.mesh.partition_spec(partition)

    def sharding(self, mesh: ReplicaMesh) -> Sharding:
        return NamedSharding(mesh.mesh, self._parts)

    def replica_cell(self, cell: Any) -> Mirrored:
        return Mirrored.from_whole(lax.with_sharding_constraint(cell.whole, self._parts), self.mesh)

    @property
    def of_gradients(self) -> Divided:
        return self

    def gathered(self, part: Any) -> Any:
        return part

    def summed(self, value: Any) -> Any:
        return lax.psum(lax.with_sharding_constraint(value, self._parts), self.mesh.axis_name)
