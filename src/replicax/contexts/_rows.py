"""The rows of a replica's batch that are being processed, when it is split into microbatches."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, final

__all__ = ["Rows", "current_rows", "use_rows"]


@final
@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows from `start` to `stop` of `total`, one of `num_parts` parts."""

    start: int
    stop: int
    total: int
    num_parts: int
    weights: Any = None
    """The weights of losses in the other parts, for training."""


_rows: ContextVar[Rows | None] = ContextVar("replicax_rows", default=None)


def current_rows() -> Rows | None:
    """The rows of this part; None if the whole batch is processed at once."""
    return _rows.get()


@contextlib.contextmanager
def use_rows(rows: Rows) -> Iterator[None]:
    """Process some of the rows during a `with` block."""
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)
