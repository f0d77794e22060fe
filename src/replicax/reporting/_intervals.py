"""Sets of times, represented as sorted lists of disjoint intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Intervals", "difference", "intersection", "length", "union"]

Intervals = Sequence[tuple[float, float]]


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """The times in any of the intervals, which may overlap and come in any order.

    >>> from replicax.reporting._intervals import union
    >>> union([(4, 5), (0, 2), (1, 3), (3, 3)])
    [(0, 3), (4, 5)]
    """
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """The times that are in both.

    >>> from replicax.reporting._intervals import intersection
    >>> intersection([(0, 3), (4, 9)], [(2, 5), (8, 10)])
    [(2, 3), (4, 5), (8, 9)]
    """
    found: list[tuple[float, float]] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            found.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(first: Intervals, second: Intervals) -> Intervals:
    """The times that are in `first` but not in `second`.

    >>> from replicax.reporting._intervals import difference
    >>> difference([(0, 3), (4, 9)], [(2, 5), (8, 10)])
    [(0, 2), (5, 8)]
    """
    ends = [float("-inf"), *(end for _, end in second)]
    starts = [*(start for start, _ in second), float("inf")]
    return intersection(first, list(zip(ends, starts, strict=True)))


def length(intervals: Intervals) -> float:
    """The total length.

    >>> from replicax.reporting._intervals import length
    >>> length([(0, 3), (4, 9)])
    8
    """
    return sum(end - start for start, end in intervals)
