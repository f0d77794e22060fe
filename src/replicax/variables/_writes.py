"""What the writing methods of a variable do to its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

__all__ = ["SCATTER", "SUMMABLE_SCATTER", "Apply", "add", "replace", "subtract"]

Apply = Callable[[Any, Any], Any]
"""Makes the new value of a variable from the old one and what was passed in."""


def replace(old: Any, new: Any) -> Any:
    """`new`, in the shape of `old`."""
    return jnp.broadcast_to(new, old.shape) if np.shape(new) != old.shape else new


def add(old: Any, new: Any) -> Any:
    """What `assign_add` makes."""
    return old + new


def subtract(old: Any, new: Any) -> Any:
    """What `assign_sub` makes."""
    return old - new


def _scatter(method: str) -> Apply:
    def apply(old: Any, rows: Any) -> Any:
        return getattr(old.at[jnp.asarray(rows.indices)], method)(rows.values)

    return apply


SCATTER = {
    "scatter_add": _scatter("add"),
    "scatter_sub": _scatter("subtract"),
    "scatter_mul": _scatter("multiply"),
    "scatter_div": _scatter("divide"),
    "scatter_min": _scatter("min"),
    "scatter_max": _scatter("max"),
    "scatter_update": _scatter("set"),
}
SUMMABLE_SCATTER = ("scatter_add", "scatter_sub", "scatter_mul", "scatter_div")
