"""`TensorFlowOp`: an op of `replicax.tf` as a node of a functional Keras model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import keras

__all__ = ["TensorFlowOp"]


@final
class TensorFlowOp(keras.Operation):
    """Calls an op when the model is called.

    Args:
        fn: the op.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self._fn = fn

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the op."""
        return self._fn(*args, **kwargs)
