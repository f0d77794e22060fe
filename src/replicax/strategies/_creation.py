"""How a strategy creates a variable."""

from __future__ import annotations

import concurrent.futures
import contextvars
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from replicax.contexts import current
from replicax.values import PerReplica
from replicax.variables import Variable, current_frame, prepare_variable

if TYPE_CHECKING:
    from replicax.strategies._strategy import StrategyBase

__all__ = ["create_variable"]


def create_variable(self: StrategyBase, *args: Any, **kwargs: Any) -> Variable:
    """Create a variable. `rx.Variable(...)` calls it with its own arguments."""

    def make() -> Variable:
        frame = current_frame()
        with frame.creating():
            spec, value = prepare_variable(*args, **kwargs)
            spec, layout = self.answers.choose_layout(spec)
            if not self.mesh.is_local:
                value = _of_first_process(self, value)
            variable = Variable._make(spec, layout, self, jnp.copy(layout.place(value)))
        frame.adopt(variable)
        return variable

    replica = current().replica
    return make() if replica is None else replica.create(make)


def _of_first_process(strategy: StrategyBase, value: jax.Array) -> jax.Array:
    """The first process's `value`, in all processes.

    It is sent at once, also if a step that is being traced creates the variable. The program that sends it
    must not become part of that trace, and a trace belongs to one thread, so it runs in another thread.
    """

    def send() -> jax.Array:
        own = PerReplica([value] * len(strategy.mesh.local_replica_ids), mesh=strategy.mesh)
        return strategy.communicator.first([own])[0].to_plain()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, send).result()
