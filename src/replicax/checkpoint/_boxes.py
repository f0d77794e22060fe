"""Boxes: rectangular parts of an array, and arrays put together from parts.

A box has a range for each axis. It is the unit in which large values are written and read, whatever layout
they had when they were saved and whatever layout they will have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

__all__ = [
    "Box",
    "assembled",
    "box_of",
    "cut",
    "joined",
    "num_elements",
    "overlap",
    "shape_of",
    "whole_box",
]

Box = tuple[tuple[int, int], ...]
"""The first index and the one after the last, for each axis."""


def whole_box(shape: Sequence[int]) -> Box:
    """The box of a whole array."""
    return tuple((0, size) for size in shape)


def box_of(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """The part of an array of this shape that has these indices, which may exceed it."""
    ranges = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return tuple((start, max(start, stop)) for start, stop, _ in ranges)


def shape_of(box: Box) -> tuple[int, ...]:
    """The shape of the array in a box."""
    return tuple(stop - start for start, stop in box)


def num_elements(box: Box) -> int:
    """The number of elements in a box."""
    return math.prod(shape_of(box))


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes have in common; None if that is nothing."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


def _inside(box: Box, outer: Box) -> tuple[slice, ...]:
    """The indices of `box` in the array of `outer`."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))


def assembled(box: Box, dtype: Any, parts: Iterable[tuple[Box, Callable[[], np.ndarray]]]) -> np.ndarray:
    """A new array with the elements of `box`, from disjoint parts that cover it."""
    result, missing = np.empty(shape_of(box), dtype), num_elements(box)
    for part, read in parts:
        common = overlap(part, box)
        if common is not None:
            result[_inside(common, box)] = read()[_inside(common, part)]
            missing -= num_elements(common)
    if missing:
        raise ValueError(f"{missing} of the {result.size} elements of {box} are missing")
    return result


def joined(boxes: Iterable[Box], limit: int) -> list[Box]:
    """The same elements in fewer boxes: neighbours become one if it has at most `limit` elements."""
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


def cut(box: Box, limit: int) -> list[Box]:
    """The same elements in boxes with at most `limit` elements, cut along the first axes."""
    if num_elements(box) <= limit:
        return [box]
    axis = next(i for i, (start, stop) in enumerate(box) if stop - start > 1)
    start, stop = box[axis]
    step = max(1, limit * (stop - start) // num_elements(box))
    pieces = [
        (*box[:axis], (first, min(first + step, stop)), *box[axis + 1 :])
        for first in range(start, stop, step)
    ]
    return [small for piece in pieces for small in cut(piece, limit)]
