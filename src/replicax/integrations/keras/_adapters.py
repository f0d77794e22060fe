"""Keras optimizers on `rx.Variable`s: `optimizer.apply_gradients([(gradient, tf.Variable(...))])`.

Keras needs attributes that only its own variables have, so each `rx.Variable` is wrapped in a
`DistributedVariable`. An optimizer always sees the same wrapper, because Keras looks up slots by identity.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from replicax.integrations.keras._variable import DistributedVariable
from replicax.variables import Variable

__all__ = ["building_for_variables", "taking_variables"]


def taking_variables(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Make `optimizer.apply` accept `rx.Variable`s."""

    @functools.wraps(apply)
    def call(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        return apply(self, grads, _wrap_all(self, trainable_variables))

    return call


def building_for_variables(build: Callable[..., Any]) -> Callable[..., Any]:
    """Make `optimizer.build` accept `rx.Variable`s."""

    @functools.wraps(build)
    def call(self: Any, variables: Any) -> Any:
        return build(self, _wrap_all(self, variables))

    return call


def _wrap_all(optimizer: Any, variables: Any) -> Any:
    given = None if variables is None else list(variables)
    if given is None or not any(isinstance(variable, Variable) for variable in given):
        return given
    known: dict[Any, Any] = optimizer.__dict__.setdefault("_replicax_adapters", {})
    return [_wrapper_of(known, variable) for variable in given]


def _wrapper_of(known: dict[Any, Any], variable: Any) -> Any:
    if not isinstance(variable, Variable):
        return variable
    if variable.ref() not in known:
        known[variable.ref()] = _wrap(variable)
    return known[variable.ref()]


def _wrap(variable: Variable) -> Any:
    # A plain Keras variable, created in a new context, provides the attributes for the wrapper.
    plain = contextvars.Context().run(_plain_like, variable)
    adapter: Any = object.__new__(DistributedVariable)
    attributes = {name: value for name, value in vars(plain).items() if name not in ("_value", "_layout")}
    adapter.__dict__.update(
        attributes,
        _layout=None,
        _variable=variable,
        _distribute_strategy=variable.distribute_strategy,
        _place_in_checkpoint=(None, ""),
        _donated_to=None,
        _was_read=False,
    )
    return adapter


def _plain_like(variable: Variable) -> Any:
    name = variable.name.removesuffix(":0").replace("/", "_")
    value = np.zeros(variable.shape, variable.dtype)
    make: Any = keras.Variable
    return make(value, dtype=str(variable.dtype), trainable=variable.trainable, name=name)
