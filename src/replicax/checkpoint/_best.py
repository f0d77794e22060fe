"""Ranks checkpoints by the metrics saved with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

from replicax.errors import CheckpointError

__all__ = ["Best", "validate_metrics"]


@final
@dataclasses.dataclass(frozen=True)
class Best:
    """How checkpoints are compared.

    Args:
        function: takes metrics and returns a number.
        mode: whether the best number is the largest or the smallest.
    """

    function: Callable[[dict[str, float]], float]
    mode: Literal["max", "min"]

    def score(self, metrics: dict[str, float] | None) -> float:
        """A score, higher is better; -inf without metrics or if the score is NaN."""
        if metrics is None:
            return -math.inf
        value = float(self.function(metrics))
        return -math.inf if math.isnan(value) else value if self.mode == "max" else -value


def validate_metrics(metrics: Mapping[str, Any], best: Best | None) -> dict[str, float]:
    """Convert metrics to floats, and try `best` on them now, not when old checkpoints are deleted."""
    try:
        numbers = {str(name): float(value) for name, value in metrics.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"CheckpointManager.save(metrics={metrics!r}): pass a dict of numbers, such as "
            '{"accuracy": 0.9}.'
        ) from error
    if best is not None:
        try:
            best.score(numbers)
        except Exception as error:
            raise CheckpointError(
                f"CheckpointManager.save(metrics={numbers!r}): best_fn failed with "
                f"{type(error).__name__}: {error}. Pass the metrics that it uses."
            ) from error
    return numbers
