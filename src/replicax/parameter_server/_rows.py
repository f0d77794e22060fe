"""Rows of a variable: which server has them, and how they are sent.

Rows are sent without padding. The server pads them to a power of two, so that it compiles few programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np

from replicax.parameter_server._placement import Part, placement_of
from replicax.variables import Variable

__all__ = ["RowsToPull", "filled", "filled_pair", "rows_on"]

_FILLER = np.iinfo(np.int32).max
"""The row number of padding; no such row exists, so writes to it are dropped."""

_FEWEST = 16


@final
class RowsToPull:
    """Rows of a variable that are fetched together.

    Args:
        variable: the variable.
        numbers: of the rows, in any order; those that do not exist are left out.
    """

    def __init__(self, variable: Variable, numbers: np.ndarray) -> None:
        placement = placement_of(variable)
        numbers = np.unique(numbers)
        self.numbers = numbers[(numbers >= 0) & (numbers < variable.shape[0])].astype(np.int32)
        self.key = placement.key
        self._empty = np.zeros((0, *variable.shape[1:]), variable.dtype)
        self.on_server: dict[int, np.ndarray] = {}
        """For each server that has some of them, the numbers that they have there."""
        for part in placement.to_read:
            start, stop = np.searchsorted(self.numbers, (part.start, part.stop))
            if stop > start:
                self.on_server[part.server] = self.numbers[start:stop] - part.start

    def joined(self, rows: Mapping[int, np.ndarray]) -> np.ndarray:
        """All rows in order, from those of each server."""
        parts = [rows[server] for server in self.on_server]
        return parts[0] if len(parts) == 1 else np.concatenate([self._empty, *parts])


def rows_on(
    part: Part, values: np.ndarray, indices: np.ndarray, *, adds: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The rows that belong to a part, with their numbers there; `adds` if rows that repeat are added."""
    values = np.reshape(values, (indices.size, *values.shape[indices.ndim :]))
    indices = np.reshape(indices, -1)
    own = np.flatnonzero((indices >= part.start) & (indices < part.stop))
    rows, numbers = values[own], (indices[own] - part.start).astype(np.int32)
    return _added(rows, numbers) if adds else (rows, numbers)


def _added(rows: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distinct, places = np.unique(numbers, return_inverse=True)
    if len(distinct) == len(numbers):
        return rows, numbers
    sums = np.zeros((len(distinct), *rows.shape[1:]), rows.dtype)
    np.add.at(sums, places, rows)
    return sums, distinct


def filled(numbers: np.ndarray) -> np.ndarray:
    """Row numbers, padded to one of a few sizes."""
    size = max(_FEWEST, 1 << max(0, len(numbers) - 1).bit_length())
    found = np.full(size, _FILLER, np.int32)
    found[: len(numbers)] = numbers
    return found


def filled_pair(rows: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their numbers, padded to one of a few sizes."""
    all_numbers = filled(numbers)
    all_rows = np.zeros((len(all_numbers), *rows.shape[1:]), rows.dtype)
    all_rows[: len(numbers)] = rows
    return all_rows, all_numbers
