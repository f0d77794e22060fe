"""`extended.update`: calls an update function once for each copy of a variable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from replicax._jax import is_tracer
from replicax.contexts import Context, StrategyProtocol, current, enter
from replicax.errors import VariableError
from replicax.execution._program import ProgramFrame, ReplicaFrame
from replicax.values import (
    Mirrored,
    PerReplica,
    flatten,
    is_array,
    map_leaves,
    regroup,
    regroup_mirrored,
    select,
)
from replicax.variables import Variable, current_frame, journal

__all__ = ["update_copies"]


def update_copies(
    strategy: StrategyProtocol,
    variable: Variable | None,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    *,
    num_copies: int,
    group: bool,
) -> Any:
    """Call `fn` in the update context of each copy; after an error all copies are unchanged.

    Args:
        strategy: the strategy whose devices hold the copies.
        variable: the variable to update; its copy is the first argument of `fn`. With None, `fn` gets only
            `args`.
        fn: the update.
        args: its arguments; each call gets the copy's part of mirrored values.
        kwargs: its keyword arguments.
        num_copies: the number of copies in this process.
        group: merge the results into one mirrored value; otherwise return them as a tuple.
    """
    if strategy.num_replicas_in_sync > 1:
        _refuse_per_replica((args, kwargs))
    results = []
    with journal(keep=True):
        for index, turn in _turns(strategy, variable, num_copies):
            copy = () if variable is None else (variable.copies[index],)
            with turn:
                result = fn(*copy, *select(args, index), **select(kwargs, index))
            results.append(_on_copy(result, strategy, index) if num_copies > 1 else result)
    if isinstance(current_frame(), ProgramFrame | ReplicaFrame) and len(results) == 1:
        merged = map_leaves(lambda x: _mirrored(x, strategy, num_copies), results[0])
    else:
        differ = variable is not None and variable.layout.differs
        merged = (regroup if differ else regroup_mirrored)(results, strategy.mesh)
    return merged if group else map_leaves(_as_tuple, merged)


def _refuse_per_replica(structure: Any) -> None:
    for leaf in flatten(structure)[0]:
        if isinstance(leaf, PerReplica):
            raise VariableError(
                "extended.update got a PerReplica argument, so the copies of the variable would "
                "differ. Reduce it first with `strategy.extended.reduce_to(op, value, variable)`, or with "
                "`all_reduce` in the replica. What a replica then computes from the reduced value is "
                "per-replica again: compute it in the update function."
            )


def _turns(
    strategy: StrategyProtocol, variable: Variable | None, num_copies: int
) -> Iterator[tuple[int, Any]]:
    """For each call of the update function: the copy, and the context of the call."""
    frame = current_frame()
    if isinstance(frame, ReplicaFrame):
        replica = jax.lax.axis_index(strategy.mesh.axis_name) if num_copies > 1 else 0
        yield 0, enter(current().inner(strategy, None, replica))
        return
    if isinstance(frame, ProgramFrame) and not (variable is not None and variable.layout.differs):
        num_copies = 1
    for index in range(num_copies):
        replica = strategy.mesh.local_replica_ids[index] if num_copies > 1 else 0
        context = current().inner(strategy, None, replica, index)
        yield index, _at(context, _device(strategy, variable, index, num_copies))


def _device(strategy: StrategyProtocol, variable: Variable | None, index: int, num_copies: int) -> Any:
    if num_copies > 1:
        return strategy.mesh.local_devices[index]
    return strategy.parameter_device if variable is None else variable.device


@contextlib.contextmanager
def _at(context: Context, device: Any) -> Iterator[None]:
    with enter(context), jax.default_device(device):
        yield


def _on_copy(result: Any, strategy: StrategyProtocol, index: int) -> Any:
    """The part of an update's result that belongs to one copy, on that copy's device."""

    def own(leaf: Any) -> Any:
        if isinstance(leaf, Mirrored | PerReplica):
            leaf = leaf.select(index)
        concrete = isinstance(leaf, jax.Array) and not is_tracer(leaf)
        return strategy.mesh.place(leaf, index) if concrete else leaf

    return map_leaves(own, result)


def _mirrored(leaf: Any, strategy: StrategyProtocol, num_copies: int) -> Any:
    """Wrap a result that was traced once for all copies."""
    traced_once = num_copies > 1 and is_array(leaf)
    return Mirrored.from_whole(leaf, strategy.mesh) if traced_once else leaf


def _as_tuple(leaf: Any) -> tuple[Any, ...]:
    return leaf.values if isinstance(leaf, Mirrored | PerReplica) else (leaf,)
