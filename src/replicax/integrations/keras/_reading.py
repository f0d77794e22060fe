"""Reads and writes of plain Keras variables: steps turn them into `rx.Variable`s, and tapes watch them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from replicax._jax import is_tracer
from replicax._recording import unrecorded
from replicax.contexts import current, has_strategy
from replicax.errors import ContextError
from replicax.integrations.keras._data_steps import watched_in_step
from replicax.integrations.keras._private import in_stateless_scope
from replicax.integrations.keras._unscoped import adopt, in_step
from replicax.integrations.keras._variable import DistributedVariable
from replicax.variables import watched_by

__all__ = ["accepting_copy", "adopted_when_read", "writing_outside_of_steps"]


def accepting_copy(to_array: Callable[..., Any]) -> Callable[..., Any]:
    """Make `np.array(variable)` accept NumPy 2's `copy` argument; NumPy warns otherwise."""

    @functools.wraps(to_array)
    def call(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        return to_array(self, dtype)

    return call


def adopted_when_read(maybe_autocast: Callable[..., Any]) -> Callable[..., Any]:
    """Make steps adopt the plain variables that they read, and tapes watch them."""

    @functools.wraps(maybe_autocast)
    def call(self: Any, value: Any) -> Any:
        if in_stateless_scope():
            value = watched_in_step(self, value)
        elif not isinstance(self, DistributedVariable):
            if in_step() and self._value is not None:
                adopt(self)
                value = self._value
            elif tapes := current().tapes:
                value = watched_by(tapes, self, value)
        return maybe_autocast(self, value)

    return call


def writing_outside_of_steps(direct_assign: Callable[..., Any]) -> Callable[..., Any]:
    """Make steps adopt the plain variables that they write; a strategy's steps raise instead."""

    @functools.wraps(direct_assign)
    def call(self: Any, value: Any) -> None:
        here = current()
        if has_strategy() and (here.replica is not None or is_tracer(value)):
            raise ContextError(
                f"The Keras variable {self.path!r} is written in a step of {here.strategy!r}, but was "
                "created outside of that strategy's scope, so it has no copies on the replicas. Create "
                "the model, its optimizer, its metrics and its seed generators inside `with "
                "strategy.scope():`."
            )
        if in_step() and not in_stateless_scope():
            adopt(self)
            self._direct_assign(value)
        else:
            direct_assign(self, unrecorded(value))

    return call
