"""Combining the values that replicas write, according to the variable's aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.collectives import Communicator
from replicax.errors import VariableError
from replicax.types import ReduceOp, VariableAggregation
from replicax.values import IndexedSlices, Mirrored, PerReplica
from replicax.variables._writes import SUMMABLE_SCATTER, Write

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["aggregate", "check_same_method", "check_scatter", "write_combined"]

_REDUCE_OPS = {VariableAggregation.SUM: ReduceOp.SUM, VariableAggregation.MEAN: ReduceOp.MEAN}


def write_combined(variable: Variable, replica: Any, write: Write) -> Any:
    """Write in a replica function: merge the replicas and write their combined value."""
    if variable.aggregation is VariableAggregation.NONE:
        raise VariableError(
            f"{write.name} of the variable {variable.name!r} in a replica function: the replicas may write "
            "different values, and the variable does not say how to combine them. Create it with "
            "aggregation=rx.VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA, or with "
            "synchronization=ON_READ if each replica should keep its own value."
        )
    return replica.merge_call(variable._write_merged, args=(write.method, write.operand))


def check_same_method(variable: Variable, method: Any) -> None:
    """Raise if the replicas call different methods to write `variable`."""
    if isinstance(method, PerReplica):
        raise VariableError(
            f"The replicas write the variable {variable.name!r} in different ways: "
            f"{', '.join(each.name for each in method.values)}. Every replica must call the same method, "
            "in the same order."
        )


def aggregate(aggregation: VariableAggregation, value: Any, communicator: Communicator) -> Any:
    """Combine what the replicas wrote into one value."""
    if isinstance(value, IndexedSlices):
        return _aggregate_rows(aggregation, value, communicator)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return communicator.first([value])[0]
    return communicator.reduce(_REDUCE_OPS[aggregation], [value])[0]


def _aggregate_rows(
    aggregation: VariableAggregation, rows: IndexedSlices, communicator: Communicator
) -> IndexedSlices:
    parts = [communicator.on_each(part) for part in (rows.values, rows.indices)]
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        values, indices = communicator.first(parts)
    else:
        values, indices = (communicator.gather(part, 0)[0] for part in parts)
    values, indices = (x.whole if isinstance(x, Mirrored) else x for x in (values, indices))
    if aggregation is VariableAggregation.MEAN:
        values = values / communicator.num_replicas
    return IndexedSlices(values, indices, rows.dense_shape)


def check_scatter(variable: Variable, method: str) -> None:
    """Raise if the result would depend on the order in which the replicas write their rows."""
    alone = (VariableAggregation.NONE, VariableAggregation.ONLY_FIRST_REPLICA)
    if method not in SUMMABLE_SCATTER and variable.aggregation not in alone:
        raise NotImplementedError(
            f"{method} of the variable {variable.name!r} with aggregation {variable.aggregation.name}: the "
            "result would depend on the order in which the replicas write their rows. Use aggregation "
            "ONLY_FIRST_REPLICA, or scatter_add, scatter_sub, scatter_mul or scatter_div."
        )
