"""Imports Keras and checks that it runs on JAX."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

__all__ = ["require_keras"]


def require_keras() -> Any:
    """The module `keras`, with JAX as its backend.

    Sets KERAS_BACKEND to jax if it is not set and Keras has not been imported.

    Raises:
        ImportError: Keras is not installed, or runs on another backend.

    >>> from replicax.integrations.keras import require_keras
    >>> require_keras().backend.backend()
    'jax'
    """
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "jax")
    try:
        keras = importlib.import_module("keras")
    except ImportError as error:
        raise ImportError(
            f"Keras can't be imported ({error}). Install it with `pip install 'replicax[keras]'`, and set "
            "KERAS_BACKEND=jax."
        ) from error
    if keras.backend.backend() != "jax":
        raise ImportError(
            f"Replicax needs Keras on JAX, but Keras runs on {keras.backend.backend()}. Set "
            "KERAS_BACKEND=jax in the environment before Keras is first imported."
        )
    if getattr(keras.config, "is_nnx_enabled", bool)():  # older versions don't have it
        raise ImportError(
            "KERAS_NNX_ENABLED is set, so Keras creates Flax variables, which a strategy can't place. "
            "Unset it."
        )
    return keras
