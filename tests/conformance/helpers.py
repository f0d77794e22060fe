"""Short names for what nearly every conformance test does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import replicax as rx

__all__ = ["AGGREGATIONS", "ON_READ", "close", "each", "parts", "rid", "rows", "variable"]

ON_READ = rx.VariableSynchronization.ON_READ
AGGREGATIONS = {
    "SUM": lambda parts: np.sum(parts, axis=0),
    "MEAN": lambda parts: np.mean(parts, axis=0),
    "ONLY_FIRST_REPLICA": lambda parts: np.asarray(parts[0]),
}


def each(strategy: Any, value_of: Callable[[int], Any], dtype: Any = None) -> Any:
    """The distributed value whose component on replica i is the array `value_of(i)`."""
    return strategy.distribute_values_from_function(
        lambda ctx: jnp.asarray(value_of(ctx.replica_id_in_sync_group), dtype)
    )


def parts(strategy: Any, value: Any) -> list[np.ndarray]:
    """The parts of `value`, one for each replica; a single shared value is repeated."""
    found = [np.asarray(part) for part in strategy.local_results(value)]
    if len(found) == 1:
        found *= strategy.num_replicas_in_sync
    assert len(found) == strategy.num_replicas_in_sync
    return found


def close(actual: Any, expected: Any) -> None:
    """Equal in shape, and in value up to rounding."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def rid() -> Any:
    """This replica's id."""
    return rx.get_replica_context().replica_id_in_sync_group


def rows(i: int) -> np.ndarray:
    """A 2x3 array that is different on each replica."""
    return np.arange(6, dtype=np.float32).reshape(2, 3) * (i + 1) - i


def variable(strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """A variable made in the strategy's scope."""
    with strategy.scope():
        return rx.Variable(*args, **kwargs)
