"""Keras' per-thread call state, kept separately for each replica.

Eager replicas take turns in one thread, and may be switched in the middle of a layer or a loss. Without
this, a replica that continues would find another replica's state in what Keras stores per thread (the
current layer, training mode, precision) or in the layer (losses of `add_loss` and activity regularizers).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from replicax.contexts import current, has_strategy
from replicax.integrations.keras._run import running

__all__ = ["getting_call_state", "losses_of_layers", "setting_call_state"]

_NAMES = (
    "autocast_scope",
    "current_call_ctx",
    "name_scope_stack",
    "remat_scope_stack",
    "stateless_scope",
    "symbolic_scope",
)
"""The parts of Keras' per-thread state that describe the current call."""

_states: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""Merge point -> state: every `run` creates a new merge point for each replica."""


def _state_here() -> dict[Any, Any] | None:
    replica = current().replica if has_strategy() else None
    return None if replica is None else _states.setdefault(replica._merge_point, {})


def getting_call_state(get: Callable[..., Any]) -> Callable[..., Any]:
    """Make Keras' `get_global_attribute` return the state of this replica, and of this `Run`."""

    @functools.wraps(get)
    def call(name: str, default: Any = None, set_to_default: bool = False) -> Any:
        if name == "distribution" and (run := running.get()) is not None:
            return run.layout
        state = _state_here() if name in _NAMES else None
        if state is None:
            return get(name, default, set_to_default)
        if name not in state:
            around = get(name)  # the state where `strategy.run` was called
            state[name] = list(around) if isinstance(around, list) else around
        if state[name] is None and set_to_default:
            state[name] = default
        return default if state[name] is None else state[name]

    return call


def setting_call_state(set_: Callable[..., Any]) -> Callable[..., Any]:
    """Make Keras' `set_global_attribute` set the state of this replica."""

    @functools.wraps(set_)
    def call(name: str, value: Any) -> None:
        state = _state_here() if name in _NAMES else None
        if state is None:
            set_(name, value)
        else:
            state[name] = value

    return call


def _get_losses(layer: Any) -> Any:
    state = _state_here()
    return vars(layer)["_losses"] if state is None else state.setdefault(("losses", id(layer)), [])


def _set_losses(layer: Any, losses: Any) -> None:
    vars(layer)["_losses"] = losses
    if (state := _state_here()) is not None:
        state["losses", id(layer)] = []  # a deleted layer may have had the same id


losses_of_layers = property(_get_losses, _set_losses)
"""Replaces `Layer._losses`: in a replica function, the losses that this replica added."""
