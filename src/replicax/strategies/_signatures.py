"""The types in the signatures of `Strategy`.

If a replica function returns one array or number, `run` returns a `PerReplica` of it. A structure keeps its
type, although its leaves are now per-replica values, because Python has no type for "the same structure
with other leaves". The type is exact again for what `reduce`, `gather` and `local_results` return. Types do
not depend on the number of replicas, so code that works only with one replica does not type-check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar

import jax
import numpy as np

from replicax.values import DistributedValues

__all__ = ["Axes", "Batches", "Leaf", "PartialBatch", "Structure", "T", "Value"]

Leaf = TypeVar("Leaf", bound=jax.Array | np.ndarray | float | complex)
Structure = TypeVar("Structure")
T = TypeVar("T")

Value: TypeAlias = DistributedValues | jax.Array | np.ndarray | float | complex
Axes: TypeAlias = int | Sequence[int] | None
PartialBatch: TypeAlias = Literal["exact", "pad", "error"]
Batches: TypeAlias = Iterable[T] | Callable[[], Iterable[T]]
