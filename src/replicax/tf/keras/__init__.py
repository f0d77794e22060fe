"""`tf.keras`: Keras 3 on JAX with its TensorFlow names, under strategies.

The names come from Keras' own module for `tf.keras`, which includes those of earlier versions, such as
`losses.Reduction`. Submodules can be imported: `from replicax.tf.keras.layers import Dense`.
"""

import importlib
import sys
from typing import Any

from replicax.integrations.keras import require_keras
from replicax.tf._missing import refuse

require_keras()
_keras = importlib.import_module("keras._tf_keras.keras")

__all__ = [name for name in vars(_keras) if not name.startswith("_")]  # pyright: ignore

_OWN = ("layers", "utils")  # our own submodules

_refuse = refuse(
    "tf.keras",
    {
        "estimator": "your own training loop, or `model.fit`",
        "experimental": "the class in `tf.keras.layers` or `tf.keras.optimizers`",
    },
)


def __getattr__(name: str) -> Any:
    if name in _OWN:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "Input":
        return importlib.import_module(f"{__name__}.layers").Input
    return getattr(_keras, name) if hasattr(_keras, name) else _refuse(name)


def _offer_submodules() -> None:
    """Make `import replicax.tf.keras.NAME` work for every submodule of Keras."""
    for prefix in ("keras.", "keras._tf_keras.keras."):
        names = [name for name in list(sys.modules) if name.startswith(prefix)]
        for name in names:
            rest = name.removeprefix(prefix)
            if not rest.startswith(("src", "_")) and rest not in _OWN:
                sys.modules[f"{__name__}.{rest}"] = sys.modules[name]


def _reset_states(self: Any) -> None:
    """Keras 2's name of `reset_state`."""
    self.reset_state()


_offer_submodules()
_keras.metrics.Metric.reset_states = _reset_states
