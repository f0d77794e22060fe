"""What layouts have in common whose variables have one value, which all replicas share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.collectives import Communicator
from replicax.contexts import current
from replicax.topology import ReplicaMesh
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.variables._aggregation import check_scatter
from replicax.variables._layout import Layout, spread_parts

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["SharedValue"]


class SharedValue(Layout):
    """One value that all replicas read and write.

    What replicas write is combined first, as the aggregation says, whatever the synchronization.
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
        """The shared value; an ON_READ total is divided, so that the replicas' parts add up to it."""
        cell = current().frame.load(variable)
        total = variable.aggregation is VariableAggregation.SUM
        if not total or variable.synchronization is not VariableSynchronization.ON_READ:
            return cell
        return spread_parts(cell.whole, self.mesh, divide=True)

    def check_method(self, variable: Variable, method: str) -> None:
        if current().replica is not None:
            check_scatter(variable, method)
