"""Grain datasets whose elements can be had by index.

As everywhere in Grain, an index beyond the length is one in a later epoch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, final

import grain
import numpy as np

from replicax.tf.data._elements import frozen

__all__ = ["ENDLESS", "CachedRows", "JoinedRows", "Rows", "ShuffledRows"]

ENDLESS = sys.maxsize
"""The length of what has no end."""


@final
class Rows(grain.MapDataset):
    """`length` elements that a function gives."""

    def __init__(self, length: int, get: Callable[[int], Any]) -> None:
        """Elements are `get(0)`, `get(1)`, ..."""
        super().__init__()
        self._length, self._get = length, get

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self._get(index % self._length)


@final
class ShuffledRows(grain.MapDataset):
    """Elements in a random order within windows, another one for each epoch.

    Args:
        parent: the elements.
        window: how many elements are shuffled together.
        seed: what the order is made from, together with the epoch.
        epoch: the number of the first epoch.
        reshuffle: whether epochs differ.
    """

    def __init__(self, parent: Any, window: int, seed: int, epoch: int, reshuffle: bool) -> None:
        """Orders are made when they are needed."""
        super().__init__(parent)
        self._window, self._seed, self._first, self._reshuffle = window, seed, epoch, reshuffle
        # Threads that read ahead are in neighbouring windows.
        self._order = functools.lru_cache(maxsize=16)(self._make_order)

    def _make_order(self, epoch: int, window: int, size: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch, window]).permutation(size)

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        length = len(self._parent)
        epoch, index = divmod(index, length)
        window, index = divmod(index, self._window)
        start = window * self._window
        order = self._order(
            self._first + epoch if self._reshuffle else 0, window, min(self._window, length - start)
        )
        return self._parent[epoch * length + start + int(order[index])]


@final
class JoinedRows(grain.MapDataset):
    """The elements of one dataset after those of another."""

    def __init__(self, first: Any, second: Any) -> None:
        """Both have a length."""
        super().__init__([first, second])
        self._sizes = len(first), len(second)

    def __len__(self) -> int:
        return min(sum(self._sizes), ENDLESS)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        first, second = self.parents
        epoch, index = divmod(index, len(self))
        if index < self._sizes[0]:
            return first[epoch * self._sizes[0] + index]
        return second[epoch * self._sizes[1] + index - self._sizes[0]]


@final
class CachedRows(grain.MapDataset):
    """Elements of the first epoch, each made once and kept in `store`."""

    def __init__(self, parent: Any, store: dict[int, Any]) -> None:
        """Nothing is made beforehand."""
        super().__init__(parent)
        self._store = store

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        index %= len(self)
        if index not in self._store:
            self._store[index] = frozen(self._parent[index])
        return self._store[index]
