"""The base of layouts with one value that all replicas share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.collectives import Communicator
from replicax.contexts import current
from replicax.errors import VariableError
from replicax.topology import ReplicaMesh
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.variables._aggregation import check_scatter
from replicax.variables._layout import Layout, spread_parts

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["SharedValue"]


class SharedValue(Layout):
    """One value that all replicas read and write.

    The replicas' writes are combined first, according to the aggregation, whatever the synchronization.
    """

    type_name = "AggregatingVariable"

    def __init__(self, communicator: Communicator) -> None:
        self._mesh = communicator.mesh

    @property
    def mesh(self) -> ReplicaMesh:
        return self._mesh

    def unwrap(self, cell: Any) -> Any:
        return cell.whole

    def read(self, variable: Variable) -> Any:
        return current().frame.load(variable).to_plain()

    def held(self, variable: Variable) -> Any:
        """The shared value; an ON_READ total is split into parts that add up to it."""
        cell = current().frame.load(variable)
        if variable.synchronization is not VariableSynchronization.ON_READ:
            return cell
        if variable.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            raise VariableError(
                f"The variable {variable.name!r} (ON_READ, ONLY_FIRST_REPLICA) has one copy under this "
                "strategy: the other replicas' writes are dropped, so they can't be combined. Read it "
                "with `v.read_value()`, or give it the aggregation SUM or MEAN."
            )
        total = variable.aggregation is VariableAggregation.SUM
        return spread_parts(cell.whole, self.mesh, divide=True) if total else cell

    def check_method(self, variable: Variable, method: str) -> None:
        if current().replica is not None:
            check_scatter(variable, method)
