"""Short names for what nearly every test of training does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

__all__ = ["ON_READ", "close", "collectives", "each", "mirrored", "parts", "rid", "total"]

ON_READ = rx.VariableSynchronization.ON_READ


def mirrored(n: int) -> Any:
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def each(strategy: Any, value_of: Callable[[int], Any]) -> Any:
    """The distributed value whose component on replica i is the array `value_of(i)`."""
    return strategy.distribute_values_from_function(
        lambda ctx: jnp.asarray(value_of(ctx.replica_id_in_sync_group))
    )


def parts(strategy: Any, value: Any) -> list[np.ndarray]:
    """What each replica has of `value`; one value that all share counts for each."""
    found = [np.asarray(getattr(part, "value", part)) for part in strategy.local_results(value)]
    return found * strategy.num_replicas_in_sync if len(found) == 1 else found


def total(strategy: Any, value: Any) -> Any:
    return strategy.reduce("SUM", value, axis=None)


def rid() -> Any:
    """This replica's id."""
    return rx.get_replica_context().replica_id_in_sync_group


def close(actual: Any, expected: Any, rtol: float = 1e-5) -> None:
    """Equal in shape, and in value up to rounding."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-6)


def collectives(step: Any, *args: Any, optimized: bool = True) -> list[str]:
    """The lines of a compiled step's program, after its first run, in which replicas talk.

    XLA's own passes may join or drop some; without `optimized` they are as they were asked for.
    """
    step(*args)
    (program,) = step._programs.values()
    lowered = program.lower(jax.tree.leaves((args, {})))
    text = lowered.compile().as_text() if optimized else lowered.as_text()
    found = re.compile(
        r"(all[-_]reduce|all[-_]gather|collective[-_]permute|all[-_]to[-_]all)(-start)?[\"]?\("
    )
    return [line.strip() for line in text.splitlines() if found.search(line)]
