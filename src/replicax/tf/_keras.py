"""Imports `tf.keras` on first use."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["load_keras"]


def load_keras() -> Any:
    """The module `replicax.tf.keras`."""
    try:
        importlib.import_module("replicax.integrations.keras").require_keras()
        return importlib.import_module("replicax.tf.keras")
    except ImportError as error:
        raise AttributeError(f"tf.keras is Keras 3 on JAX. {error}") from error
