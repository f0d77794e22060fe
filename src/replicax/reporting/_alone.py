"""Times the step on a single device, with one replica's rows.

The step is compiled for one replica and runs on copies of the variables, so the program itself is not
affected.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.execution import Function
from replicax.planning import OneReplica, compile_for_one_replica
from replicax.variables import Variable, is_variable

__all__ = ["seconds_alone"]

_MOST_RUNS = 20
_MOST_SECONDS = 1.0


def seconds_alone(function: Function[..., Any], args: Any, kwargs: Any) -> float:
    """The step time on the first device of this process, in seconds.

    Raises:
        ContextError: the step can't be compiled for one replica.
    """
    alone = compile_for_one_replica(function.python_function, args, kwargs)
    read = list(map(_copy, alone.read))
    written = list(map(_copy, alone.written))
    arguments = _first_parts(alone, args, kwargs)

    def run(written: list[jax.Array]) -> list[jax.Array]:
        returned = jax.block_until_ready(alone.program(read, written, *arguments))
        return list(returned[len(returned) - len(written) :])

    written = run(written)
    start, count = time.perf_counter(), 0
    while count < _MOST_RUNS and time.perf_counter() - start < _MOST_SECONDS:
        written = run(written)
        count += 1
    return (time.perf_counter() - start) / count


def _copy(state: tuple[Variable, jax.ShapeDtypeStruct]) -> jax.Array:
    """A copy of a variable's value on one replica, which may be donated."""
    variable, shape = state
    layout = variable.layout
    whole = layout.is_split and not layout.differs
    array = variable.read_value() if whole else variable._store.arrays[variable._place].addressable_data(0)
    return jnp.copy(jax.device_put(array.reshape(shape.shape), shape.sharding))


def _first_parts(alone: OneReplica, args: Any, kwargs: Any) -> list[Any]:
    """The arguments of the first replica."""
    leaves = jax.tree.leaves((args, kwargs), is_leaf=is_variable)
    pairs = zip(leaves, alone.leaves, strict=True)
    return [_first_part(leaf, shape) for leaf, shape in pairs if isinstance(shape, jax.ShapeDtypeStruct)]


def _first_part(leaf: Any, shape: jax.ShapeDtypeStruct) -> Any:
    if np.shape(leaf) != shape.shape:
        leaf = leaf.addressable_data(0)
    return np.asarray(leaf) if shape.sharding is None else jax.device_put(leaf, shape.sharding)
