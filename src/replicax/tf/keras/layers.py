"""`tf.keras.layers`: Keras' own, plus layers for strings that do not need TensorFlow."""

import importlib
from typing import Any

from replicax.tf.keras._string_lookup import Input, StringLookup

_layers = importlib.import_module("keras._tf_keras.keras.layers")

_others = [name for name in dir(_layers) if not name.startswith("_") and name not in globals()]

__all__ = ["Input", "StringLookup", *_others]  # pyright: ignore


def __getattr__(name: str) -> Any:
    return getattr(_layers, name)
