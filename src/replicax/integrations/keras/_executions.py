"""`steps_per_execution`: several Keras steps in one program.

Keras' JAX trainer just calls its compiled step `steps_per_execution` times. Under a strategy, one program
runs these steps in a loop, with the same results. A batch of another size, such as the last one of an
epoch, runs as a separate step.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from replicax.execution import scan_calls
from replicax.integrations.keras._run import Run, is_compiled, keeping_result, running, signature

__all__ = ["running_together"]


def running_together(make_function: Callable[..., Any]) -> Callable[..., Any]:
    """Make `Model._make_function` run the steps of one execution in one program."""

    @functools.wraps(make_function)
    def call(self: Any, step_function: Any, concatenate_outputs: bool = False) -> Any:
        one_by_one = make_function(self, keeping_result(step_function), concatenate_outputs)
        if self.steps_per_execution == 1 or not is_compiled(step_function):
            return one_by_one
        together = _together(self, step_function, concatenate_outputs)

        def execute(state: Any, iterator: Iterator[Any]) -> Any:
            return (one_by_one if running.get() is None else together)(state, iterator)

        return execute

    return call


def _together(model: Any, step_function: Any, concatenate_outputs: bool) -> Callable[..., Any]:
    one = keeping_result(step_function)
    many = keeping_result(_many(step_function, running.get()))

    def execute(state: Any, iterator: Iterator[Any]) -> Any:
        batches = [next(iterator), *itertools.islice(iterator, model.steps_per_execution - 1)]
        outputs: list[Any] = []
        for _, group in itertools.groupby(batches, signature):
            first, *others = group
            if others:
                results, state = many(state, (first, *others))
                outputs += results
            else:
                result, state = one(state, first)
                outputs.append(result)
        return (_concatenated(outputs) if concatenate_outputs else outputs[-1]), state

    return execute


def _many(step_function: Any, run: Run | None) -> Any:
    """A program that runs a step for several batches; it returns the list of outputs and the state."""

    def placed(array: Any) -> Any:
        """Constrain a batch to its sharding; inside the loop XLA might choose another one."""
        return (
            array
            if run is None
            else jax.lax.with_sharding_constraint(array, run.layout.sharding(array.shape))
        )

    def step(state: Any, batch: Any) -> Any:
        outputs, state = step_function(state, jax.tree.map(placed, batch))
        return outputs, tuple(map(list, state))

    @functools.wraps(step_function)
    def many(state: Any, batches: Any) -> Any:
        return scan_calls(step, tuple(map(list, state)), batches)

    shardings = None if run is None else (None, run.layout.replicated)
    return jax.jit(many, donate_argnums=0, out_shardings=shardings)


@jax.jit
def _concatenated(outputs: list[Any]) -> Any:
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)
