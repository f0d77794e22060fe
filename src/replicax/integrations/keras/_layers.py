"""Batch normalization on a replica without examples.

The last batch of an epoch may have fewer rows than there are replicas. The mean of zero rows is NaN,
which would stay in the moving averages forever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from replicax.contexts import current, has_strategy

__all__ = ["normalizing_some_rows"]


def normalizing_some_rows(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let `BatchNormalization.call` use its averages, without updating them, if there are no rows."""

    @functools.wraps(call)
    def call_some(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if has_strategy() and current().replica is not None and 0 in inputs.shape:
            training = False
        return call(self, inputs, training=training, mask=mask)

    return call_some
