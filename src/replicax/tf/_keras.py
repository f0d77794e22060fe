"""`tf.keras`: Keras 3, on JAX."""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["load_keras"]


def load_keras() -> Any:
    """The module `keras`, with JAX as its backend."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    try:
        keras = importlib.import_module("keras")
    except ImportError as error:
        raise AttributeError(
            "tf.keras is Keras 3: install it with `pip install 'replicax[keras]'`."
        ) from error
    if keras.backend.backend() != "jax":
        raise AttributeError(
            f"tf.keras needs Keras on JAX, but Keras runs on {keras.backend.backend()}. Set "
            "KERAS_BACKEND=jax before Keras is first imported."
        )
    return keras
