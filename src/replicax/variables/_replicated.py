"""The layout of mirrored variables: one equal copy on each replica.

The copies stay equal because the replicas' writes are combined first, according to the aggregation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from replicax._jax import is_tracer
from replicax.contexts import current
from replicax.errors import VariableError
from replicax.values import IndexedSlices, Mirrored, PerReplica
from replicax.variables._aggregation import check_scatter, write_combined
from replicax.variables._layout import OnMesh, write_one_copy
from replicax.variables._writes import Write

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["Replicated"]


@final
class Replicated(OnMesh):
    """One equal copy on each replica."""

    type_name = "MirroredVariable"
    has_copies = True

    def place(self, value: Any) -> Any:
        return self.mesh.replicate(value)

    def wrap(self, array: Any, scalar: bool) -> Mirrored:
        return Mirrored.from_whole(array, self.mesh)

    def unwrap(self, cell: Any) -> Any:
        return cell.whole

    def read_copy(self, variable: Variable, local_index: int) -> Any:
        return current().frame.load(variable).select(local_index)

    def read(self, variable: Variable) -> Any:
        return current().frame.load(variable).to_plain()

    def check_method(self, variable: Variable, method: str) -> None:
        check_scatter(variable, method)

    def write_in_replica(self, variable: Variable, replica: Any, write: Write) -> Any:
        return write_combined(variable, replica, write)

    def write_copy(self, variable: Variable, local_index: int, write: Write) -> Any:
        if isinstance(write.operand, PerReplica):
            _refuse(variable, write)
        return write_one_copy(variable, local_index, write)

    def write(self, variable: Variable, write: Write) -> Mirrored:
        frame, operand = current().frame, _operand(variable, write, write.operand)

        def compute() -> Mirrored:
            new = variable._fitted(write.applied_to(frame.load(variable).whole, operand))
            return self.wrap(new if is_tracer(new) else self.mesh.replicate(new), False)

        return frame.modify(variable, compute)


def _operand(variable: Variable, write: Write, value: Any) -> Any:
    """The value to write, the same for all copies."""
    if isinstance(value, PerReplica):
        _refuse(variable, write)
    if isinstance(value, IndexedSlices):
        values, indices = (_operand(variable, write, part) for part in (value.values, value.indices))
        return IndexedSlices(values, indices, value.dense_shape)
    return value.whole if isinstance(value, Mirrored) else value


def _refuse(variable: Variable, write: Write) -> None:
    raise VariableError(
        f"{write.name} of the mirrored variable {variable.name!r} got a PerReplica value: its copies "
        "would differ. Reduce the value first (`strategy.reduce` or `extended.reduce_to`), or "
        "write it in a replica function with an aggregation."
    )
