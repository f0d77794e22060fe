"""Which rows of a replica's batch are being processed, when the batch is split into microbatches."""

from __future__ import annotations

import dataclasses
from typing import Any, final

__all__ = ["Rows"]


@final
@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` of `total`: one of `num_parts` parts."""

    start: int
    stop: int
    total: int
    num_parts: int
    batches: tuple[int, ...] = ()
    """Which of the replica's padded batches are split."""
    weights: Any = None
    """The weights of the losses in the other parts, for training."""
