"""Compiled steps under `jax_debug_nans` and `jax_debug_infs`.

JAX's own check runs after the arrays were donated, and then calls the function again, operation by
operation, which fails for a step on several devices. So steps check their results themselves, without
donating arrays: if the check fails, the variables are unchanged.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp

from replicax._jax import debug_infs, debug_nans

__all__ = ["check_numbers", "without_debugging"]


@contextlib.contextmanager
def without_debugging() -> Any:
    """A `with` block in which JAX does not check for NaNs and infinities itself."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def check_numbers(name: str, array: Any) -> None:
    """Raise if `array` has NaNs or infinities and the user asked to check for them."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return
    found = [
        text
        for wanted, has, text in (
            (debug_nans.value, jnp.isnan, "NaN"),
            (debug_infs.value, jnp.isinf, "an infinity"),
        )
        if wanted and any(bool(has(shard.data).any()) for shard in array.addressable_shards)
    ]
    if found:
        raise FloatingPointError(
            f"A compiled step computed {' and '.join(found)} in {name}; no variable was changed. Leave out "
            "`rx.function` to run it eagerly: JAX then raises at the operation that computed it."
        )
