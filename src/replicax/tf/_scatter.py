"""Scatter ops, which update elements at given coordinates: thin wrappers around `x.at[...]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from replicax.tf._op import array, op, static

__all__ = [
    "scatter_nd",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
]


def _scatter(name: str, method: str, does: str) -> Callable[..., Any]:
    def scatter(tensor: Any, indices: Any, updates: Any) -> jax.Array:
        x = array(tensor)
        axes = tuple(jnp.moveaxis(array(indices), -1, 0))
        return getattr(x.at[axes], method)(array(updates).astype(x.dtype))

    scatter.__name__ = scatter.__qualname__ = name
    scatter.__doc__ = f"An array with elements {does}; the last axis of `indices` has the coordinates."
    return op(scatter)


tensor_scatter_nd_update = _scatter("tensor_scatter_nd_update", "set", "replaced")
tensor_scatter_nd_add = _scatter("tensor_scatter_nd_add", "add", "increased")
tensor_scatter_nd_sub = _scatter("tensor_scatter_nd_sub", "subtract", "decreased")
tensor_scatter_nd_max = _scatter("tensor_scatter_nd_max", "max", "replaced by the maximum")
tensor_scatter_nd_min = _scatter("tensor_scatter_nd_min", "min", "replaced by the minimum")


@op
def scatter_nd(indices: Any, updates: Any, shape: Any) -> jax.Array:
    """An array of zeros with `updates` added at the coordinates in `indices`.

    >>> from replicax import tf
    >>> tf.scatter_nd([[1], [1]], [4.0, 5.0], [3])
    Array([0., 9., 0.], dtype=float32)
    """
    values = array(updates)
    return tensor_scatter_nd_add(jnp.zeros(static(shape), values.dtype), indices, values)
