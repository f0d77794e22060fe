"""The places of Keras' variables in a checkpoint, which are known before the variables exist.

A layer has a place in its model, and a variable has a number in its layer. So a checkpoint that was
restored before a model was built can give each variable its value when Keras creates it, also inside of a
step. Names would not do: Keras numbers them, so those of the same model differ from program to program.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from replicax.checkpoint import restore_pending
from replicax.errors import CheckpointError
from replicax.integrations.keras._variable import DistributedVariable, place_in_checkpoint

__all__ = [
    "adding_in_place",
    "checkpoint_items",
    "checkpoint_items_by_number",
    "may_grow",
    "restoring_after",
]


def checkpoint_items(thing: Any) -> dict[str, Any]:
    """The variables and parts of a layer, an optimizer or a metric, by their place in it."""
    if isinstance(thing, keras.Layer):
        layers = [x for x in thing._layers if not isinstance(x, keras.layers.InputLayer)]
        variables = {
            "trainable": thing._trainable_variables,
            "non_trainable": thing._non_trainable_variables,
            "seeds": [seed.state for seed in thing._seed_generators],
        }
        parts = {f"layers/{i}": layer for i, layer in enumerate(layers)}
    elif isinstance(thing, keras.metrics.Metric):
        variables = {"variables": thing._variables}
        parts = {f"metrics/{i}": metric for i, metric in enumerate(thing._metrics)}
    else:
        variables = {"variables": thing._variables}
        inner = getattr(thing, "inner_optimizer", None)
        parts = {} if inner is None else {"inner_optimizer": inner}
    numbered = {f"{kind}/{i}": v for kind, found in variables.items() for i, v in enumerate(found)}
    items = {place: _replicax_variable(v) for place, v in numbered.items()}
    return {**{place: v for place, v in items.items() if v is not None}, **parts}


def checkpoint_items_by_number(self: Any) -> dict[str, Any]:
    """The variables as checkpoints of earlier versions call them."""
    items = {str(i): _replicax_variable(v) for i, v in enumerate(self.variables)}
    return {place: v for place, v in items.items() if v is not None}


def may_grow(self: Any) -> bool:
    """Whether Keras has yet to create variables of a layer, an optimizer or a metric."""
    return not getattr(self, "built", getattr(self, "_built", True))


def _replicax_variable(variable: Any) -> Any:
    """The variable in which a Keras variable has its value; None if it has none yet."""
    if not isinstance(variable, DistributedVariable):
        raise CheckpointError(
            f"The Keras variable {variable.path!r} was made outside of `strategy.scope()`, so an "
            "rx.Checkpoint can't hold it. Make and build the model and its optimizer in a scope, or "
            "use `model.save_weights`."
        )
    return None if variable._variable is None else variable.replicax_variable


def adding_in_place(add: Callable[..., Any]) -> Callable[..., Any]:
    """A method that creates a variable of a layer, an optimizer or a metric, which is told its place."""
    signature = inspect.signature(add)

    @functools.wraps(add)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, keras.Layer):
            trainable = signature.bind(self, *args, **kwargs).arguments.get("trainable", True)
            kind, found = "non_trainable", self._non_trainable_variables
            if trainable:
                kind, found = "trainable", self._trainable_variables
        else:
            kind, found = "variables", self._variables
        token = place_in_checkpoint.set((self, f"{kind}/{len(found)}"))
        try:
            variable = add(self, *args, **kwargs)
        finally:
            place_in_checkpoint.reset(token)
        replicax_variable = getattr(variable, "_variable", None)
        if replicax_variable is not None and replicax_variable.layout.differs:
            restore_pending()  # the replicas' parts; a new variable gets a combined value at most
        return variable

    return call


def restoring_after(build: Callable[..., Any]) -> Callable[..., Any]:
    """A method that builds something, after which pending values are restored that it did not get yet."""

    @functools.wraps(build)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        was_built = getattr(self, "built", True)
        result = build(self, *args, **kwargs)
        if not was_built:
            restore_pending()
        return result

    return call
