"""Compiled steps under `jax_debug_nans` and `jax_debug_infs`.

JAX's own check runs after the program has taken over the donated arrays, and then calls the function
again operation by operation, which a step on several devices does not survive. So steps make the check
themselves, on results that were computed without donating: when it fails, variables are as before.
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
    """A `with` block in which JAX does not look for them itself."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def check_numbers(name: str, array: Any) -> None:
    """Raise if `array` has entries that the user asked to look for."""
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
            "`rx.function` to run it eagerly: JAX then raises at the operation that made it."
        )
