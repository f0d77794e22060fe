"""Scalars that travel with a larger reduction, in case somebody asks for their sum later.

A training step reduces its gradients inside of the replica function and its loss after it. On CPU each
all-reduce is a meeting of all devices, which takes longer than the arithmetic of a small step. But the loss
is there before the gradients are: so `rx.value_and_grad` offers it, the next pack takes it along for four
bytes more, and `strategy.reduce` finds its sum known. A sum that nobody asks for costs nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, final

from replicax._jax import current_trace, trace_of

__all__ = ["Riders", "current_riders", "offer_rider", "taking_riders"]


@final
class Riders:
    """The offered scalars of one compiled replica function, and the sums of those that were taken."""

    def __init__(self) -> None:
        # Inside of a transformation (grad, vmap, scan, ...) a scalar would take part in what is
        # differentiated or mapped, so only values of the replica function itself travel.
        self._trace = current_trace()
        self._waiting: list[Any] = []
        # The scalar is kept beside its sum, so that no other object can get its id.
        self._sums: dict[int, tuple[Any, Any]] = {}

    def offer(self, scalar: Any) -> None:
        """Let `scalar` travel with the next reduction that it fits."""
        if trace_of(scalar) is self._trace:
            self._waiting.append(scalar)

    def waiting(self, dtype: Any) -> list[Any]:
        """What may join a reduction of values with this dtype, here and now."""
        if current_trace() is not self._trace:
            return []
        return [scalar for scalar in self._waiting if scalar.dtype == dtype]

    def settle(self, scalars: Sequence[Any], sums: Sequence[Any]) -> None:
        """Take note of the sums of scalars that were waiting."""
        self._sums |= {id(s): (s, total) for s, total in zip(scalars, sums, strict=True)}
        self._waiting = [s for s in self._waiting if id(s) not in self._sums]

    def sum_of(self, value: Any) -> Any:
        """The sum of `value` over the replicas if it is known, else None."""
        return self._sums.get(id(value), (None, None))[1]


_current: ContextVar[Riders | None] = ContextVar("riders", default=None)


@contextlib.contextmanager
def taking_riders() -> Iterator[Riders]:
    """A `with` block that traces a replica function, whose reductions take offered scalars along."""
    riders = Riders()
    token = _current.set(riders)
    try:
        yield riders
    finally:
        _current.reset(token)


def current_riders() -> Riders | None:
    """Those of the replica function being traced; None where the replicas are not one program."""
    return _current.get()


def offer_rider(scalar: Any) -> None:
    """Let `scalar`, a replica's own, travel with the next reduction that it fits."""
    riders = _current.get()
    if riders is not None:
        riders.offer(scalar)
