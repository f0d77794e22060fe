"""`tf.keras.utils`: that of Keras, and the evaluator that TensorFlow has there."""

import importlib
from typing import Any

from replicax.tf.keras._sidecar import SidecarEvaluator

_utils = importlib.import_module("keras._tf_keras.keras.utils")

__all__ = ["SidecarEvaluator", *(name for name in vars(_utils) if not name.startswith("_"))]  # pyright: ignore


def __getattr__(name: str) -> Any:
    return getattr(_utils, name)
