"""Compiles a step for one replica, on a real device, whatever its strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from replicax.errors import ContextError
from replicax.execution import CompiledStep
from replicax.planning._arguments import Arguments
from replicax.planning._explain import lower_as_planned, strategy_of
from replicax.planning._plan import plan
from replicax.variables import Variable

__all__ = ["OneReplica", "compile_for_one_replica"]


class OneReplica(NamedTuple):
    """A compiled step. Its program takes a list of arrays it only reads, one of those it also writes, and
    the arguments.
    """

    program: jax.stages.Compiled
    read: list[tuple[Variable, jax.ShapeDtypeStruct]]
    written: list[tuple[Variable, jax.ShapeDtypeStruct]]
    leaves: list[Any]
    """The leaves of the arguments, with shapes in place of arrays."""


def compile_for_one_replica(fn: Callable[..., Any], args: Any, kwargs: Any) -> OneReplica:
    """Compile a step for one replica and one replica's rows."""
    arguments = Arguments(args, kwargs)
    first = CompiledStep(fn, *arguments.on(None))
    strategy = strategy_of(first)
    if strategy is None or not strategy.mesh.is_local:
        raise ContextError(
            "A step can be compared with one device only if all its variables belong to one "
            "MirroredStrategy or ShardedStrategy, in one process."
        )
    step, leaves, state, lowered = lower_as_planned(
        fn, arguments, first, strategy, plan(strategy, 1, "mirrored")
    )
    shapes = [(variable, shape) for variable, _, shape in state]
    num_read = len(shapes) - len(step.written)
    return OneReplica(lowered.compile(), shapes[:num_read], shapes[num_read:], leaves)
