"""Keras variables that were created outside of any scope, in compiled steps and checkpoints.

They stay plain Keras variables until an `rx.function`, `rx.value_and_grad` or an `rx.Checkpoint` uses them,
which needs an `rx.Variable`. Then each becomes a `DistributedVariable` of the default strategy, with the
same value. Variables that Keras creates inside such a step, or while a restored checkpoint has pending
values, are `DistributedVariable`s from the start.
"""

from __future__ import annotations

import contextvars
from typing import Any

from replicax._jax import is_staging, outside_of_traces
from replicax.contexts import current, has_strategy
from replicax.integrations.keras._private import in_stateless_scope
from replicax.integrations.keras._variable import DistributedVariable, move
from replicax.variables import awaiting_values

__all__ = ["adopt", "adopted_variable", "begins_adopted", "in_step"]


def in_step() -> bool:
    """Whether a step is being traced here, without a strategy."""
    return not has_strategy() and not current().frame.is_eager


def begins_adopted() -> bool:
    """Whether a variable that is created here, without a strategy, must be an `rx.Variable` at once.

    In a function that JAX traces, other than a step, there can be no `rx.Variable`.
    """
    return in_step() or (bool(awaiting_values) and not is_staging())


def adopt(variable: Any) -> None:
    """Turn a plain Keras variable into one of the default strategy."""
    if not isinstance(variable, DistributedVariable):
        # A new context has no strategies, steps or tapes.
        contextvars.Context().run(_move_to_default, variable)


def _move_to_default(variable: Any) -> None:
    with outside_of_traces():
        move(variable, current().strategy)


def adopted_variable(variable: Any) -> Any:
    """The `rx.Variable` of any Keras variable, for `rx.value_and_grad` and `rx.Optimizer`."""
    if in_stateless_scope():
        raise AttributeError("In a keras.StatelessScope, a Keras variable has no rx.Variable.")
    adopt(variable)
    return variable.replicax_variable
