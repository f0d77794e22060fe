"""Limits on how long a collective may take.

For an eager collective, Python waits for the result. Inside a compiled step that is impossible, so the
limit is recorded while the step is traced, and `rx.function` then waits for each run of the step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax

from replicax._jax import is_tracer
from replicax.collectives._options import CommunicationOptions
from replicax.errors import CollectiveTimeoutError
from replicax.values import Mirrored

__all__ = ["await_or_limit", "await_result", "collect_step_timeouts"]

_POLL_SECONDS = 0.0005
_requested: ContextVar[list[float] | None] = ContextVar("replicax_step_timeouts", default=None)


@contextlib.contextmanager
def collect_step_timeouts() -> Iterator[list[float]]:
    """Collect the limits of the collectives of a step while it is traced."""
    limits: list[float] = []
    token = _requested.set(limits)
    try:
        yield limits
    finally:
        _requested.reset(token)


def await_or_limit(results: Sequence[Mirrored], options: CommunicationOptions | None, what: str) -> None:
    """Apply the timeout in `options`: wait for `results`, or limit the step being traced."""
    if options is None or options.timeout_seconds is None:
        return
    wholes = [result.whole if isinstance(result, Mirrored) else result for result in results]
    if not any(map(is_tracer, wholes)):
        await_result(wholes, options.timeout_seconds, what)
    elif (limits := _requested.get()) is not None:
        limits.append(options.timeout_seconds)


def await_result(outputs: Any, seconds: float, what: str) -> None:
    """Wait until `outputs` are computed, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    pending = [x for x in jax.tree.leaves(outputs) if isinstance(x, jax.Array)]
    while pending := [x for x in pending if not x.is_ready()]:
        if time.monotonic() > deadline:
            raise CollectiveTimeoutError(
                f"{what} did not finish within timeout_seconds={seconds}. Another replica or process may "
                "be stuck or slow, or the limit may be too short for the amount of data."
            )
        time.sleep(_POLL_SECONDS)
