"""Embeddings on parameter servers: a step fetches only the rows that it looks up.

Keras' `Embedding` indexes its whole table, which every step would have to fetch. On parameter servers it
calls `sparse_read` instead, with the same result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras

from replicax.integrations.keras._private import in_stateless_scope
from replicax.integrations.keras._variable import DistributedVariable

__all__ = ["looking_up_rows"]


def looking_up_rows(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make `Embedding.call` fetch only the rows that it needs from a table on parameter servers."""

    @functools.wraps(call)
    def call_on_rows(self: Any, inputs: Any) -> Any:
        table = self.embeddings  # with LoRA, a computed array instead of a variable
        if not isinstance(table, DistributedVariable) or in_stateless_scope():
            return call(self, inputs)
        variable = table.replicax_variable
        if variable.layout.servers is None:
            return call(self, inputs)
        numbers = jnp.asarray(inputs)
        if not jnp.issubdtype(numbers.dtype, jnp.integer):
            numbers = numbers.astype(jnp.int32)
        return keras.ops.cast(variable.sparse_read(numbers), self.compute_dtype)

    return call_on_rows
