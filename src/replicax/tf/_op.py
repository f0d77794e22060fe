"""What makes a function of JAX an op: it takes `name`, and variables as well as arrays."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["array", "op"]


def array(value: Any) -> jax.Array:
    """`value`, a variable among others, as an array."""
    return jnp.asarray(value)


def op(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` with the argument `name` that every op of TensorFlow has; it is shown in profiles."""

    @functools.wraps(fn)
    def named(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if name is None else jax.named_scope(name):
            return fn(*args, **kwargs)

    return named
