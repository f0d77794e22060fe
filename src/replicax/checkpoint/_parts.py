"""ON_READ variables in checkpoints, of which each replica holds its own part.

A checkpoint has the parts and, unless the aggregation is NONE, the combined value. On the same number of
replicas, each replica gets its part back. On another number, or into a variable that is not ON_READ, the
combined value is restored.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any

import numpy as np

from replicax.contexts import get_replica_context
from replicax.types import VariableAggregation
from replicax.variables import Variable

__all__ = ["cannot_combine", "has_parts", "is_combinable", "read_parts", "takes_parts", "write_parts"]


def has_parts(variable: Variable) -> bool:
    return variable.layout.differs


def is_combinable(variable: Variable) -> bool:
    """Whether the variable can be read in the cross-replica context, as one value."""
    return variable.aggregation is not VariableAggregation.NONE or not has_parts(variable)


def read_parts(variable: Variable) -> np.ndarray:
    """The parts of all replicas, stacked by replica id."""
    strategy = variable.distribute_strategy
    local = [np.asarray(copy.read_value()) for copy in strategy.local_results(variable)]
    if len(local) == strategy.num_replicas_in_sync:
        return np.stack(local)
    rows = _outside(strategy.run, lambda: variable.read_value()[None])
    return np.asarray(strategy.gather(rows, axis=0))


def write_parts(variable: Variable, parts: np.ndarray) -> None:
    """Assign each replica its part."""

    def write() -> None:
        context = get_replica_context()
        assert context is not None
        variable.assign(parts[int(context.replica_id_in_sync_group)], read_value=False)

    _outside(variable.distribute_strategy.run, write)


def _outside(function: Any, *args: Any) -> Any:
    """Call a function outside of the current scope, which may belong to another strategy."""
    return contextvars.Context().run(function, *args)


def takes_parts(variable: Variable, entry: Mapping[str, Any]) -> bool:
    """Whether to restore this variable from the saved parts rather than from the combined value."""
    if "parts" not in entry or entry["parts"] != _num_parts(variable):
        return False
    aggregations = {entry["aggregation"], variable.aggregation.name}
    return len(aggregations) == 1 or "NONE" in aggregations


def cannot_combine(variable: Variable, entry: Mapping[str, Any]) -> str | None:
    """Why a variable can be restored neither from parts nor from a combined value; None if it can."""
    if "parts" not in entry or entry["aggregation"] != "NONE" or takes_parts(variable, entry):
        return None
    there, here = entry["parts"], _num_parts(variable)
    return (
        f"was saved as {there} replicas' own parts, with aggregation NONE, and has "
        f"{'one value' if here is None else f'{here} parts'} here: restore it on {there} replicas, or save "
        "it with another aggregation"
    )


def _num_parts(variable: Variable) -> int | None:
    return variable.distribute_strategy.num_replicas_in_sync if has_parts(variable) else None
