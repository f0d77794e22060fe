"""Boxes: rectangular slices of an array, and how to assemble an array from them.

A box has one range per axis. Large values are written and read box by box, which makes the files
independent of how the value was sharded when it was saved and how it will be sharded when it is restored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

__all__ = [
    "Box",
    "assemble",
    "box_of",
    "split",
    "merge",
    "num_elements",
    "intersection",
    "shape_of",
    "whole_box",
]

Box = tuple[tuple[int, int], ...]
"""(start, stop) for each axis."""


def whole_box(shape: Sequence[int]) -> Box:
    """The box that covers a whole array."""
    return tuple((0, size) for size in shape)


def box_of(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """The box that `index` selects from an array of this shape; indices past the end are clipped."""
    ranges = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return tuple((start, max(start, stop)) for start, stop, _ in ranges)


def shape_of(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def num_elements(box: Box) -> int:
    return math.prod(shape_of(box))


def intersection(one: Box, other: Box) -> Box | None:
    """The intersection of two boxes; None if it is empty."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


def _inside(box: Box, outer: Box) -> tuple[slice, ...]:
    """The slices that select `box` from the array that holds `outer`."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))


def assemble(box: Box, dtype: Any, parts: Iterable[tuple[Box, Callable[[], np.ndarray]]]) -> np.ndarray:
    """Assemble the elements of `box` from disjoint parts that cover it."""
    result, missing = np.empty(shape_of(box), dtype), num_elements(box)
    for part, read in parts:
        common = intersection(part, box)
        if common is not None:
            result[_inside(common, box)] = read()[_inside(common, part)]
            missing -= num_elements(common)
    if missing:
        raise ValueError(f"{missing} of the {result.size} elements of {box} are missing")
    return result


def merge(boxes: Iterable[Box], limit: int) -> list[Box]:
    """Merge adjacent boxes as long as the result has at most `limit` elements."""
    found = list(boxes)
    for axis in range(len(found[0]) if found else 0):
        result: list[Box] = []
        for box in sorted(found, key=lambda box: (box[:axis], box[axis + 1 :], box[axis])):
            last = result[-1] if result else None
            if last is not None and _are_neighbours(last, box, axis):
                both = (*box[:axis], (last[axis][0], box[axis][1]), *box[axis + 1 :])
                if num_elements(both) <= limit:
                    result[-1] = both
                    continue
            result.append(box)
        found = result
    return found


def _are_neighbours(one: Box, other: Box, axis: int) -> bool:
    same = one[:axis] == other[:axis] and one[axis + 1 :] == other[axis + 1 :]
    return same and one[axis][1] == other[axis][0]


def split(box: Box, limit: int) -> list[Box]:
    """Split a box into boxes of at most `limit` elements, along the first axes."""
    if num_elements(box) <= limit:
        return [box]
    axis = next(i for i, (start, stop) in enumerate(box) if stop - start > 1)
    start, stop = box[axis]
    step = max(1, limit * (stop - start) // num_elements(box))
    pieces = [
        (*box[:axis], (first, min(first + step, stop)), *box[axis + 1 :])
        for first in range(start, stop, step)
    ]
    return [small for piece in pieces for small in split(piece, limit)]
