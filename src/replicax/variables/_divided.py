"""The base of layouts that shard a variable's array: reading the variable gathers its value.

Across processes the gather is a collective that all processes take part in. So the view of an array stays
sharded, and every eager read gathers it, in its turn in the order of collectives (`collectives/_order.py`).
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Sharding

from replicax._jax import is_tracer
from replicax.collectives import in_order
from replicax.contexts import current
from replicax.errors import VariableError
from replicax.values import IndexedSlices, Mirrored, PerReplica
from replicax.variables._aggregation import check_scatter, write_combined
from replicax.variables._layout import OnMesh
from replicax.variables._writes import Write

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["Divided"]


class Divided(OnMesh):
    """One value, sharded over devices."""

    type_name = "ShardedVariable"

    # The array in the store.

    def place(self, value: Any) -> Any:
        return self.mesh.put(self.padded(value), self.sharding(self.mesh))

    def wrap(self, array: Any, scalar: bool) -> Mirrored:
        complete = self.mesh.is_local or is_tracer(array)
        return Mirrored.from_whole(self._unpadded(array) if complete else array, self.mesh)

    def unwrap(self, cell: Any) -> Any:
        array = self.padded(cell.whole)
        return array if is_tracer(array) else self.mesh.put(array, self.sharding(self.mesh))

    def _unpadded(self, array: Any) -> Any:
        """The value of a padded array."""
        return array

    # In a compiled replica.

    @abc.abstractmethod
    def gathered(self, part: Any) -> Any:
        """The full value, gathered from the replicas' parts."""

    @abc.abstractmethod
    def summed(self, value: Any) -> Any:
        """This replica's part of the sum of `value` over the replicas."""

    # Reading and writing.

    def read_copy(self, variable: Variable, local_index: int) -> Any:
        return self._cell(variable).select(local_index)

    def read(self, variable: Variable) -> Any:
        return self._cell(variable).to_plain()

    def held(self, variable: Variable) -> Any:
        return self._cell(variable)

    def _cell(self, variable: Variable) -> Mirrored:
        """The current value, in a new cell each time: a cached one would keep the gathered value alive."""
        whole = current().frame.load(variable).whole
        if not self.mesh.is_local and not is_tracer(whole):
            whole = self._unpadded(_gathered_in_turn(variable, whole))
        return Mirrored.from_whole(whole, self.mesh)

    def check_method(self, variable: Variable, method: str) -> None:
        check_scatter(variable, method)

    def write_in_replica(self, variable: Variable, replica: Any, write: Write) -> Any:
        return write_combined(variable, replica, write)

    def write_copy(self, variable: Variable, local_index: int, write: Write) -> Any:
        return self.write(variable, write)

    def write(self, variable: Variable, write: Write) -> Mirrored:
        frame, operand = current().frame, self._operand(variable, write, write.operand)

        def compute() -> Mirrored:
            unknown = jax.ShapeDtypeStruct(variable.shape, variable.dtype)
            old = unknown if write.replaces else self._cell(variable).whole
            return Mirrored.from_whole(variable._fitted(write.applied_to(old, operand)), self.mesh)

        return Mirrored.from_whole(frame.modify(variable, compute).whole, self.mesh)

    def _operand(self, variable: Variable, write: Write, value: Any) -> Any:
        """The value to write, as one array on the variable's devices."""
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


def _gathered_in_turn(variable: Variable, array: jax.Array) -> jax.Array:
    """The full array on every device, gathered across processes."""
    mesh = variable.mesh
    assert mesh is not None
    kind, gather = f"gather of the variable {variable.name!r}", _gathering(mesh.replicated)
    return in_order(mesh, kind, [array], lambda: [gather(array)])[0]


@functools.cache
def _gathering(replicated: Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda array: array, out_shardings=replicated)
