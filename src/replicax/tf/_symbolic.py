"""Ops on the symbolic tensors of Keras' functional models: `tf.reduce_mean(layer(input), axis=1)`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["has_symbolic", "in_model"]


def has_symbolic(*values: Any) -> bool:
    """Whether one of the values is a `KerasTensor`; does not import Keras."""
    keras: Any = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "KerasTensor"):
        return False
    return any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten(list(values)))


def in_model(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The symbolic result of an op, which the functional model computes when it is called."""
    from replicax.tf.keras._operation import TensorFlowOp

    return TensorFlowOp(fn)(*args, **kwargs)
