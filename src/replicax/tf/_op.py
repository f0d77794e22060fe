"""Ops: JAX functions that also accept variables and the argument `name`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["array", "op"]


def array(value: Any) -> jax.Array:
    """`value`, which may be a variable, as an array."""
    return jnp.asarray(value)


def op(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` with the argument `name` that every TensorFlow op has; it is shown in profiles."""

    @functools.wraps(fn)
    def named(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if name is None else jax.named_scope(name):
            return fn(*args, **kwargs)

    return named
