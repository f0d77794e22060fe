"""The strategy of a model, and how `fit`, `evaluate` and `predict` run under it."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import weakref
from collections.abc import Callable
from typing import Any

from replicax._jax import restore_trace
from replicax._recording import is_transforming
from replicax.contexts import StrategyProtocol, current, has_strategy
from replicax.errors import ContextError
from replicax.integrations.keras._layout import StrategyLayout
from replicax.integrations.keras._run import Run, running
from replicax.integrations.keras._scheduling import on_servers, scheduling
from replicax.integrations.keras._variable import DistributedVariable, move
from replicax.parameter_server import ParameterServerStrategy
from replicax.strategies import DefaultStrategy

__all__ = [
    "building_in_scope",
    "in_scope",
    "moving_what_was_built",
    "on_all_devices",
    "remember",
    "strategy_of",
]

_strategies: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def remember(model: Any) -> None:
    """Record the strategy whose scope a model is created in."""
    if has_strategy():
        _strategies[model] = current().strategy


def strategy_of(model: Any) -> Any:
    """The strategy that a model's `fit`, `evaluate` and `predict` use; None without one.

    It is the strategy whose scope the model was created in. A model created outside of any scope gets the
    strategy of the scope that it first runs in.

    Args:
        model: a Keras model.

    >>> import keras
    >>> from replicax.integrations.keras import strategy_of
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    >>> strategy_of(model) is strategy, strategy_of(keras.Sequential())
    (True, None)
    """
    if model in _strategies:
        return _strategies[model]
    strategies = [v._distribute_strategy for v in model.variables if isinstance(v, DistributedVariable)]
    if not strategies or (has_strategy() and isinstance(strategies[0], DefaultStrategy)):
        return current().strategy if has_strategy() else None
    return strategies[0]


def in_scope(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of a model run in the scope of the model's strategy, wherever it is called."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        restore_trace()
        strategy = strategy_of(self)
        if strategy is None:
            return method(self, *args, **kwargs)
        _check_place(self, strategy, method.__name__)
        with strategy.scope():
            return method(self, *args, **kwargs)

    return call


def building_in_scope(build: Callable[..., Any]) -> Callable[..., Any]:
    """Make `build` run in the scope that the model was created in, wherever it is called."""

    @functools.wraps(build)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = None if has_strategy() else _strategies.get(self)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            return build(self, *args, **kwargs)

    return call


def on_all_devices(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of a model run Keras' own program on all devices of the model's strategy."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        restore_trace()
        strategy = strategy_of(self)
        if strategy is None or _is_running(self):
            return method(self, *args, **kwargs)
        _check_place(self, strategy, method.__name__)
        if isinstance(strategy, ParameterServerStrategy) and not method.__name__.startswith("predict"):
            return on_servers(self, strategy, method, args, kwargs)
        # Keras converts predictions to NumPy, which does not work for shards in other processes.
        split = strategy.mesh.is_local or not method.__name__.startswith("predict")
        run = Run(self, StrategyLayout(strategy.mesh, split=split))

        def in_run() -> Any:
            running.set(run)
            with strategy.scope():
                _move(self, strategy)
                try:
                    return method(self, *args, **kwargs)
                finally:
                    self.jax_state_sync()

        # A copied context needs no reset afterwards, so an interrupt can't leave it set.
        return contextvars.copy_context().run(in_run)

    return call


def moving_what_was_built(symbolic_build: Callable[..., Any]) -> Callable[..., Any]:
    """Make Keras' `_symbolic_build` also move new variables to the strategy.

    Metrics passed to `compile` become part of the model only here, and may have been created outside of the
    scope.
    """

    @functools.wraps(symbolic_build)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        symbolic_build(self, *args, **kwargs)
        if _is_running(self):
            _move(self, strategy_of(self))

    return call


def _check_place(model: Any, strategy: StrategyProtocol, name: str) -> None:
    here, what = current(), f"`{name}` of the Keras model {model.name!r}"
    if has_strategy() and here.strategy is not strategy:
        raise ContextError(
            f"{what}, which was created in the scope of {strategy!r}, was called under another strategy, "
            f"{here.strategy!r}. Only one strategy can be in use at a time: call it outside of that "
            "strategy's scope, or save the model and load it there."
        )
    if has_strategy() and here.replica is not None:
        raise ContextError(
            f"{what} was called in a replica function, but it runs on all replicas at once. Call it "
            "outside. In a replica function, call the model itself: `model(x, training=True)`."
        )
    if is_transforming():
        raise ContextError(
            f"{what} was called in a function that is being compiled or differentiated, but it compiles "
            "its own program. Call it outside. In a step, call the model itself: `model(x, "
            "training=True)`."
        )


def _is_running(model: Any) -> bool:
    run = running.get() or scheduling.get()
    return run is not None and run.model is model


def _variables_of(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *model.metrics_variables, *(optimizer.variables if optimizer else ())]


def _move(model: Any, strategy: StrategyProtocol) -> None:
    """Move variables that were created outside of the scope, such as an optimizer's, to the strategy."""
    moved = [move(variable, strategy) for variable in _variables_of(model)]
    if any(moved):
        # These functions were compiled for the variables' previous devices.
        model.train_function = model.test_function = model.predict_function = None
    _strategies[model] = strategy
