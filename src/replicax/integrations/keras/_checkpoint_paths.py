"""The paths of Keras variables in a checkpoint, which are known before the variables exist.

A path consists of a layer's index in its model and a variable's index in its layer. So if a checkpoint is
restored before a model is built, each variable gets its value when Keras creates it, even inside a step.
Names would not work: Keras numbers them per process, so they differ between programs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from replicax.checkpoint import restore_pending
from replicax.integrations.keras._unscoped import adopt
from replicax.integrations.keras._variable import place_in_checkpoint

__all__ = [
    "adding_in_place",
    "checkpoint_items",
    "checkpoint_items_by_number",
    "may_grow",
    "restoring_after",
]


def checkpoint_items(thing: Any) -> dict[str, Any]:
    """The variables and parts of a layer, an optimizer or a metric, by their path in it."""
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
    """The variables by the names that earlier versions saved them under."""
    items = {str(i): _replicax_variable(v) for i, v in enumerate(self.variables)}
    return {place: v for place, v in items.items() if v is not None}


def may_grow(self: Any) -> bool:
    """Whether Keras has yet to create variables of a layer, an optimizer or a metric."""
    return not getattr(self, "built", getattr(self, "_built", True))


def _replicax_variable(variable: Any) -> Any:
    """The `rx.Variable` of a Keras variable; None if it has no value yet."""
    adopt(variable)
    return None if variable._variable is None else variable.replicax_variable


def adding_in_place(add: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method that creates a variable of a layer, an optimizer or a metric record its path."""
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
            restore_pending()  # restores per-replica parts; creation only sets the combined value
        return variable

    return call


def restoring_after(build: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method that builds something restore the remaining pending values afterwards."""

    @functools.wraps(build)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        was_built = getattr(self, "built", True)
        result = build(self, *args, **kwargs)
        if not was_built:
            restore_pending()
        return result

    return call
