"""The global norm of gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["global_norm", "norm_of_shards"]


def global_norm(gradients: list[Any]) -> Any:
    """The Euclidean norm of all gradients together, in float32 at least."""
    return jnp.sqrt(sum(map(_sum_of_squares, gradients)))


def norm_of_shards(arrays: list[Any], layouts: list[Any], axis_name: str) -> Any:
    """The global norm in a compiled replica; arrays with a split layout are shards."""
    split = [layout is not None and layout.is_split for layout in layouts]
    pairs = list(zip(map(_sum_of_squares, arrays), split, strict=True))
    own = sum((square for square, is_shard in pairs if is_shard), jnp.float32(0))
    shared = sum((square for square, is_shard in pairs if not is_shard), jnp.float32(0))
    return jnp.sqrt(shared + jax.lax.psum(own, axis_name))


def _sum_of_squares(gradient: Any) -> Any:
    wide = gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32))
    return jnp.sum(jnp.square(jnp.abs(wide)))
