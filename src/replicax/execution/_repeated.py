"""Many calls of a step as one program, in a `lax.scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["scan_calls"]


def scan_calls(
    step: Callable[[Any, Any], tuple[Any, Any]], state: Any, calls: Sequence[Any]
) -> tuple[list[Any], Any]:
    """Call a step once for each element of `calls`, in a loop inside the program.

    Args:
        step: takes the state and the arguments of a call; returns its results and the new state.
        state: the initial state.
        calls: the arguments of each call, with the same structure, shapes and dtypes.

    Returns:
        The results of each call, and the final state.
    """

    def body(state: Any, arguments: Any) -> tuple[Any, Any]:
        results, new = step(state, arguments)
        return new, results

    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *calls)
    new, results = jax.lax.scan(body, state, stacked, length=len(calls))
    return [jax.tree.map(lambda array, i=i: array[i], results) for i in range(len(calls))], new
