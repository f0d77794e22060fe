"""TensorFlow's partitioners: how many parts a variable is split into along one of its axes.

A partitioner is a function of a shape, a dtype and an axis. It knows nothing about devices: a strategy asks
it for the number of parts, and decides where to place them.
"""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, final

import jax.numpy as jnp
import numpy as np

__all__ = ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner"]


class Partitioner(abc.ABC):
    """The base class of partitioners; subclass it to write your own.

    >>> class Halves(rx.Partitioner):
    ...     def __call__(self, shape, dtype, axis=0):
    ...         return [2 if i == axis else 1 for i in range(len(shape))]
    >>> Halves()((10, 3), jnp.float32)
    [2, 1]
    """

    @abc.abstractmethod
    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """The number of parts along each axis.

        Args:
            shape: the variable's shape.
            dtype: the variable's dtype.
            axis: the axis to split, by default the first.
        """


class _AlongOneAxis(Partitioner):
    """A partitioner that splits one axis only."""

    @final
    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """The number of parts along each axis: 1 for all but `axis`."""
        sizes = [operator.index(size) for size in shape]
        if not -len(sizes) <= axis < len(sizes):
            raise ValueError(
                f"{type(self).__name__} can't split axis {axis} of a variable of shape {tuple(sizes)}, "
                f"which has {len(sizes)} axes."
            )
        parts = [1] * len(sizes)
        parts[axis] = max(1, self._num_parts(sizes[axis], math.prod(sizes), dtype))
        return parts

    @abc.abstractmethod
    def _num_parts(self, rows: int, num_elements: int, dtype: Any) -> int:
        """The number of parts of an axis of `rows` entries; 0 means 1."""


@final
class FixedShardsPartitioner(_AlongOneAxis):
    """Splits every variable into the same number of parts, or fewer if its axis is shorter.

    Args:
        num_shards: the number of parts.

    >>> rx.FixedShardsPartitioner(num_shards=2)((10, 3), jnp.float32)
    [2, 1]
    >>> rx.FixedShardsPartitioner(4)((3, 8), jnp.float32)
    [3, 1]
    """

    def __init__(self, num_shards: SupportsIndex) -> None:
        self._num_shards = _positive("FixedShardsPartitioner", "num_shards", num_shards)

    def _num_parts(self, rows: int, num_elements: int, dtype: Any) -> int:
        return min(self._num_shards, rows)


@final
class MinSizePartitioner(_AlongOneAxis):
    """Splits a variable into as many parts as possible, none smaller than `min_shard_bytes`.

    Args:
        min_shard_bytes: the smallest size of a part. A smaller variable is not split.
        max_shards: the largest number of parts. The default, 1, splits nothing.
        bytes_per_string: the size to assume for each string, if the variable holds strings.

    >>> rx.MinSizePartitioner(min_shard_bytes=4, max_shards=2)((6, 1), jnp.float32)
    [2, 1]
    >>> rx.MinSizePartitioner(min_shard_bytes=4, max_shards=10)((6, 1), jnp.float32)
    [6, 1]
    """

    def __init__(
        self,
        min_shard_bytes: SupportsIndex = 256 << 10,
        max_shards: SupportsIndex = 1,
        bytes_per_string: SupportsIndex = 16,
    ) -> None:
        name = "MinSizePartitioner"
        self._min_bytes = _positive(name, "min_shard_bytes", min_shard_bytes)
        self._max_shards = _positive(name, "max_shards", max_shards)
        self._bytes_per_string = _positive(name, "bytes_per_string", bytes_per_string)

    def _num_parts(self, rows: int, num_elements: int, dtype: Any) -> int:
        row_bytes = _row_bytes(rows, num_elements, dtype, self._bytes_per_string)
        rows_per_part = math.ceil(self._min_bytes / row_bytes) if row_bytes else rows
        return min(self._max_shards, rows // max(rows_per_part, 1))


@final
class MaxSizePartitioner(_AlongOneAxis):
    """Splits a variable into as few parts as possible, none larger than `max_shard_bytes`.

    Args:
        max_shard_bytes: the largest size of a part. A single entry of the axis is never split, even if it
            is larger.
        max_shards: the largest number of parts; it takes precedence over `max_shard_bytes`. None: no limit.
        bytes_per_string: the size to assume for each string, if the variable holds strings.

    >>> rx.MaxSizePartitioner(max_shard_bytes=4)((6, 1), jnp.float32)
    [6, 1]
    >>> rx.MaxSizePartitioner(max_shard_bytes=4, max_shards=2)((6, 1), jnp.float32)
    [2, 1]
    >>> rx.MaxSizePartitioner(max_shard_bytes=1024)((6, 1), jnp.float32)
    [1, 1]
    """

    def __init__(
        self,
        max_shard_bytes: SupportsIndex,
        max_shards: SupportsIndex | None = None,
        bytes_per_string: SupportsIndex = 16,
    ) -> None:
        name = "MaxSizePartitioner"
        self._max_bytes = _positive(name, "max_shard_bytes", max_shard_bytes)
        self._max_shards = None if max_shards is None else _positive(name, "max_shards", max_shards)
        self._bytes_per_string = _positive(name, "bytes_per_string", bytes_per_string)

    def _num_parts(self, rows: int, num_elements: int, dtype: Any) -> int:
        row_bytes = _row_bytes(rows, num_elements, dtype, self._bytes_per_string)
        rows_per_part = max(self._max_bytes // row_bytes, 1) if row_bytes else max(rows, 1)
        parts = math.ceil(rows / rows_per_part)
        return parts if self._max_shards is None else min(parts, self._max_shards)


def _row_bytes(rows: int, num_elements: int, dtype: Any, bytes_per_string: int) -> int:
    """The size of one entry of an axis of `rows` entries."""
    itemsize = bytes_per_string if _is_text(dtype) else jnp.dtype(dtype).itemsize
    return num_elements // max(rows, 1) * itemsize


def _is_text(dtype: Any) -> bool:
    return dtype in (str, bytes, "string") or (isinstance(dtype, np.dtype) and dtype.kind in "SUOT")


def _positive(name: str, argument: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}({argument}={value!r}): pass a whole number, 1 or more.") from None
    if number < 1 or isinstance(value, bool):
        raise ValueError(f"{name}({argument}={value!r}): pass a whole number, 1 or more.")
    return number
