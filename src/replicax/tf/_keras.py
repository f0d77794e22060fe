"""`tf.keras`: Keras 3 on JAX, under strategies."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["load_keras"]


def load_keras() -> Any:
    """The module `keras` with JAX as its backend and with support for strategies."""
    try:
        return importlib.import_module("replicax.integrations.keras").require_keras()
    except ImportError as error:
        raise AttributeError(f"tf.keras is Keras 3 on JAX. {error}") from error
