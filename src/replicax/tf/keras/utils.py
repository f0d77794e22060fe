"""`tf.keras.utils`: Keras' own, plus TensorFlow's `SidecarEvaluator`."""

import importlib
from types import SimpleNamespace
from typing import Any

from replicax.tf.keras._dataset_creator import DatasetCreator
from replicax.tf.keras._sidecar import SidecarEvaluator

_utils = importlib.import_module("keras._tf_keras.keras.utils")

experimental = SimpleNamespace(DatasetCreator=DatasetCreator)

__all__ = ["SidecarEvaluator", "experimental", *(name for name in vars(_utils) if not name.startswith("_"))]  # pyright: ignore


def __getattr__(name: str) -> Any:
    return getattr(_utils, name)
