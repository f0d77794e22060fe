"""The actor that one parameter server runs in: arrays, and what is done to them.

Calls are executed one after the other, so a push is one operation. Ray keeps the order of the calls of one
process: a worker that has sent a push sees it in its next pull.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.parameter_server._packing import Packing
from replicax.parameter_server._plans import Plan, ServerOptimizer
from replicax.parameter_server._ray import compute_with
from replicax.parameter_server._rows import filled, filled_pair

__all__ = ["UNKNOWN", "ParameterServer"]

UNKNOWN = "unknown"
"""The answer to a call that refers to something that this server was not told, or has lost."""

_Snapshot = dict[str, Any]

_take = jax.jit(lambda array, numbers: array[numbers])


@final
class ParameterServer:
    """The state of one server.

    Args:
        num_threads: how many threads it computes with; None for one for each CPU.
        snapshot: the state to continue from. It is there before the first call, also of a worker that waits
            for this server.
        calls: what the server was told after the snapshot.
    """

    def __init__(
        self,
        num_threads: int | None = None,
        snapshot: _Snapshot | None = None,
        calls: Sequence[tuple[str, Any]] = (),
    ) -> None:
        compute_with(num_threads)
        jax.config.update("jax_platforms", "cpu")
        self._arrays: dict[str, Any] = {}
        self._optimizers: dict[str, ServerOptimizer] = {}
        self._requests: dict[str, tuple[list[str], Any]] = {}
        self._plans: dict[str, tuple[list[str], Any]] = {}
        self._version = 0
        self._staleness: dict[int, int] = {}
        self._moved = {"pulled": 0, "pushed": 0}
        self._changes = 0
        if snapshot is not None:
            self._arrays = {key: jnp.array(value) for key, value in snapshot["arrays"].items()}
            self._optimizers.update(snapshot["optimizers"])
            self._version = snapshot["version"]
        for method, arguments in calls:
            getattr(self, method)(*arguments)

    def ping(self) -> int:
        """The process id; answered while other calls are executed."""
        return os.getpid()

    def create(self, values: Mapping[str, np.ndarray]) -> None:
        """Add variables; those that exist keep their values."""
        for key, value in values.items():
            self._arrays.setdefault(key, jnp.array(value))
        self._changes += 1

    def remove(self, keys: Sequence[str]) -> None:
        """Remove variables."""
        for key in keys:
            self._arrays.pop(key, None)
        self._changes += 1

    def register_optimizer(self, key: str, optimizer: ServerOptimizer) -> None:
        """Add an optimizer."""
        self._optimizers[key] = optimizer
        self._changes += 1

    def register_request(self, number: str, keys: Sequence[str], packing: Packing) -> None:
        """Add a request: the variables that `pull` returns together."""
        self._requests[number] = list(keys), jax.jit(packing.pack)

    def register_plan(self, number: str, plan: Plan) -> None:
        """Add a plan: what `push` does."""
        apply = jax.jit(functools.partial(plan.apply, self._optimizers), donate_argnums=0)
        self._plans[number] = plan.keys(self._optimizers, self._arrays), apply

    def pull(self, number: str | None, rows: Sequence[tuple[str, np.ndarray]] = ()) -> Any:
        """The number of updates so far, the values of a request, and rows: a key and numbers for each."""
        if number is not None and number not in self._requests:
            return UNKNOWN
        buffers = [] if number is None else self._packed(*self._requests[number])
        found = [self._rows(key, numbers) for key, numbers in rows]
        self._moved["pulled"] += sum(array.nbytes for array in (*buffers, *found))
        self._moved["pushed"] += sum(numbers.nbytes for _, numbers in rows)
        return self._version, buffers, found

    def _packed(self, keys: Sequence[str], pack: Any) -> list[np.ndarray]:
        """The buffers, as views of JAX arrays: JAX does not reuse the memory of an array with a view."""
        return [np.asarray(x) for x in pack([self._arrays[key] for key in keys])]

    def _rows(self, key: str, numbers: np.ndarray) -> np.ndarray:
        return np.asarray(_take(self._arrays[key], filled(numbers)))[: len(numbers)]

    def push(self, number: str, buffers: Sequence[Any], rows: Sequence[Any], version: int) -> Any:
        """Do what the plan says; returns how many updates were made since the sender's last pull."""
        if number not in self._plans:
            return UNKNOWN
        keys, apply = self._plans[number]
        old = {key: self._arrays[key] for key in keys}
        given = jax.device_put(
            (list(buffers), list(starmap(filled_pair, rows)))
        )  # without a copy, if aligned
        self._arrays.update(apply(old, *given))
        self._moved["pushed"] += sum(x.nbytes for x in (*buffers, *(y for pair in rows for y in pair)))
        staleness = self._version - version
        self._staleness[staleness] = self._staleness.get(staleness, 0) + 1
        self._version += 1
        self._changes += 1
        return staleness

    def statistics(self) -> dict[str, Any]:
        """The number of updates, a histogram of their staleness, and the bytes that were moved."""
        return {
            "updates": self._version,
            "staleness": dict(self._staleness),
            "bytes_pulled": self._moved["pulled"],
            "bytes_pushed": self._moved["pushed"],
        }

    def snapshot(self, changes: int) -> tuple[int, _Snapshot | None]:
        """The number of changes so far, and the state, or None if that number is `changes`."""
        if self._changes == changes:
            return changes, None
        arrays = {key: np.asarray(jnp.copy(value)) for key, value in self._arrays.items()}
        state = {"arrays": arrays, "optimizers": self._optimizers, "version": self._version}
        return self._changes, state
