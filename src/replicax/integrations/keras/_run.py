"""The state of one call of `fit`, `evaluate` or `predict`, safe against interrupts.

A Keras step takes the values of all variables as donated arrays and returns new ones, which Keras writes
back to the variables at the end of an epoch. An exception from a signal handler, such as Ctrl-C, can arrive
between any two lines, even after a step has consumed the old arrays and before Keras has stored the new
ones. So the same C call that runs a step also appends its result to `Run.results`, from where it is written
back. If the write-back is interrupted, too, the next access to a variable completes it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, final

import jax
import numpy as np

from replicax.execution import BetweenProcesses, signals_deferred

__all__ = [
    "Run",
    "is_compiled",
    "keeping_result",
    "placing_state",
    "running",
    "signature",
    "syncing_state",
    "taking_state",
    "variable_groups",
]

running: ContextVar[Run | None] = ContextVar("replicax_keras_running", default=None)
"""The current call of `fit`, `evaluate` or `predict`."""


@final
class Run:
    """A call of `fit`, `evaluate` or `predict`.

    Args:
        model: the model.
        layout: the distribution that Keras uses during the call.
    """

    def __init__(self, model: Any, layout: Any) -> None:
        self.model = model
        self.layout = layout
        self.results: list[Any] = []
        """The last entry is the last step's result: its outputs, and lists of arrays like `_taken`."""
        self._taken: Sequence[Sequence[Any]] = ()
        self._thread = threading.get_ident()

    @property
    def is_over(self) -> bool:
        return running.get() is not self and self._thread == threading.get_ident()

    def take(self, groups: Sequence[Sequence[Any]]) -> tuple[list[Any], ...]:
        """Take the values of groups of variables, to be donated."""
        self.write_back()
        self.model._jax_state = None
        self._taken = groups
        return tuple([variable._donate(self) for variable in group] for group in groups)

    def write_back(self) -> None:
        """Write the last step's arrays to their variables; call it again after an interrupt."""
        if self.results:
            _, state = self.results[-1]
            for group, arrays in zip(self._taken, state, strict=bool(self._taken)):
                for variable, array in zip(group, arrays, strict=True):
                    variable._write_back(array)
        else:
            for group in self._taken:
                for variable in group:
                    variable._write_back(None)
        self._taken = ()
        self.results.clear()
        self.model._jax_state_synced = True


def keeping_result(step_function: Any) -> Callable[[Any, Any], Any]:
    """Wrap a Keras step to store its result in the current `Run`."""
    seen: dict[Any, Callable[[Any], Any]] = {}

    def step(state: Any, data: Any) -> Any:
        run = running.get()
        if run is None:
            return step_function(state, data)
        results = run.results

        def start(_: Any) -> Any:
            results.extend(map(step_function, [state], [data]))
            return results[-1][0]

        key = (signature(data), bool(results))
        if key in seen or not is_compiled(step_function):
            seen.get(key, _run_at_once)(start)
        else:
            # JAX's first call of a program runs Python code after the arrays were donated. Trace and
            # compile before that, where an interrupt is harmless.
            in_turn = _compiled_in_turn(run, step_function, step_function.lower(state, data))
            with signals_deferred():
                in_turn(start)
            seen[key] = in_turn
        del results[:-1]
        return results[-1]

    return step


def is_compiled(step_function: Any) -> bool:
    """Whether a step is compiled, rather than plain Python as with `run_eagerly`."""
    return hasattr(step_function, "lower")


def _run_at_once(start: Callable[[Any], Any]) -> None:
    start(None)


def _compiled_in_turn(run: Run, step_function: Any, lowered: Any) -> Callable[[Any], Any]:
    """Compile a step; returns a function that runs it, in its turn if it communicates with others."""
    mesh = run.layout.mesh
    if mesh.is_local:
        lowered.compile()
        return _run_at_once
    between = BetweenProcesses(mesh, step_function)
    between.compile(lowered)
    return lambda start: between.ordered(start)([])


def taking_state(get_jax_state: Callable[..., Any]) -> Callable[..., Any]:
    """Make `Model._get_jax_state` take the variables' values for the current `Run`."""

    @functools.wraps(get_jax_state)
    def call(self: Any, *args: Any, purge_model_variables: bool = False, **kinds: bool) -> Any:
        run = running.get()
        if run is None or run.model is not self or args:
            return get_jax_state(self, *args, purge_model_variables=purge_model_variables, **kinds)
        groups = dict(zip(_KINDS, variable_groups(self), strict=True))
        return run.take([groups[kind] for kind in _KINDS if kinds.get(kind)])

    return call


def syncing_state(jax_state_sync: Callable[..., Any]) -> Callable[..., Any]:
    """Make `Model.jax_state_sync` write back the results of the current `Run`."""

    @functools.wraps(jax_state_sync)
    def call(self: Any) -> None:
        run = running.get()
        if run is None or run.model is not self:
            jax_state_sync(self)
            return
        if not run.results:
            jax_state_sync(self)  # for a model with its own `make_train_function`
        run.write_back()

    return call


def placing_state(get_state_sharding_spec: Callable[..., Any]) -> Callable[..., Any]:
    """Make `Model._get_state_sharding_spec` return replicated shardings, without reading the variables."""

    @functools.wraps(get_state_sharding_spec)
    def call(self: Any) -> Any:
        run = running.get()
        if run is None or run.model is not self:
            return get_state_sharding_spec(self)
        return tuple([run.layout.replicated] * len(group) for group in variable_groups(self))

    return call


_KINDS = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


def variable_groups(model: Any) -> tuple[list[Any], ...]:
    """A model's trainable variables, its other variables, its optimizer's and its metrics'."""
    optimizer = getattr(model, "optimizer", None)
    optimizer_variables = [] if optimizer is None else optimizer.variables
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer_variables,
        model.metrics_variables,
    )
    return tuple(map(list, groups))


def signature(data: Any) -> Any:
    """What a compiled step depends on in its batch."""
    leaves, structure = jax.tree.flatten(data)
    return structure, tuple(
        (x.shape, x.dtype, x.sharding) if isinstance(x, jax.Array) else np.shape(x) for x in leaves
    )
