"""Scalars whose sum over the replicas is computed early, as part of a larger reduction.

A training step reduces its gradients inside the replica function and its loss after it. On CPU every
all-reduce is a rendezvous of all devices, which takes longer than the arithmetic of a small step. But the
loss is known before the gradients: `rx.value_and_grad` offers it, the next pack of gradients includes it
for four more bytes, and `strategy.reduce` finds the sum already computed. If nothing asks for the sum,
those bytes are its only cost.

The gradient of a sharded variable may also come with its sum, as this replica's shard of the sum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, final

from replicax._jax import current_trace, trace_of

__all__ = [
    "EarlySums",
    "collect_early_sums",
    "current_early_sums",
    "offer_early_sum",
    "offer_sum_in_shards",
    "sum_in_shards",
]


@final
class EarlySums:
    """The scalars that a compiled replica function has offered, and the sums computed so far."""

    def __init__(self) -> None:
        # Inside a transformation (grad, vmap, scan, ...) a scalar would be differentiated or batched with
        # the reduction, so only values of the replica function's own trace are included.
        self._trace = current_trace()
        self._pending: list[Any] = []
        # Store the scalar with its sum, so that its id is not reused for another object.
        self._sums: dict[int, tuple[Any, Any]] = {}
        self.in_shards: dict[int, tuple[Any, Any]] = {}

    def offer(self, scalar: Any) -> None:
        """Allow the next reduction of the same dtype to include `scalar`."""
        if trace_of(scalar) is self._trace:
            self._pending.append(scalar)

    def pending(self, dtype: Any) -> list[Any]:
        """The scalars that a reduction of values of this dtype may include now."""
        if current_trace() is not self._trace:
            return []
        return [scalar for scalar in self._pending if scalar.dtype == dtype]

    def record(self, scalars: Sequence[Any], sums: Sequence[Any]) -> None:
        """Store the sums of pending scalars."""
        self._sums |= {id(s): (s, total) for s, total in zip(scalars, sums, strict=True)}
        self._pending = [s for s in self._pending if id(s) not in self._sums]

    def sum_of(self, value: Any) -> Any:
        """The sum of `value` over the replicas if it was computed, else None."""
        return self._sums.get(id(value), (None, None))[1]


_current: ContextVar[EarlySums | None] = ContextVar("replicax_early_sums", default=None)


@contextlib.contextmanager
def collect_early_sums() -> Iterator[EarlySums]:
    """A `with` block for tracing a replica function; its reductions may include offered scalars."""
    sums = EarlySums()
    token = _current.set(sums)
    try:
        yield sums
    finally:
        _current.reset(token)


def current_early_sums() -> EarlySums | None:
    """The early sums of the replica function being traced; None if the replicas are not one program."""
    return _current.get()


def offer_early_sum(scalar: Any) -> None:
    """Allow the replica's next reduction to include `scalar`; does nothing in eager replicas."""
    if (sums := _current.get()) is not None:
        sums.offer(scalar)


def offer_sum_in_shards(value: Any, shard: Any) -> None:
    """Remember that `shard` is this replica's part of the sum of `value` over the replicas."""
    if (sums := _current.get()) is not None:
        sums.in_shards[id(value)] = (value, shard)


def sum_in_shards(value: Any) -> Any:
    """This replica's part of the sum of `value` if it was computed, else None."""
    sums = _current.get()
    return None if sums is None else sums.in_shards.get(id(value), (None, None))[1]
