"""Ops: JAX functions that also accept variables and the argument `name`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from replicax.variables import Variable

__all__ = ["array", "op", "rows_of"]


def array(value: Any) -> jax.Array:
    """`value`, which may be a variable, as an array."""
    return jnp.asarray(value)


def rows_of(params: Any, indices: Any) -> jax.Array:
    """The rows of an array or a variable; of one on parameter servers, steps fetch these rows only."""
    if isinstance(params, Variable):
        return params.sparse_read(array(indices))
    return jnp.take(array(params), array(indices), axis=0)


def op(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` with the argument `name` that every TensorFlow op has; it is shown in profiles."""

    @functools.wraps(fn)
    def named(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if name is None else jax.named_scope(name):
            return fn(*args, **kwargs)

    return named
