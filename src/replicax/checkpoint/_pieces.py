"""The value of a variable as pieces: on the way to disk, and on the way back.

Each process copies only the pieces that its own devices hold, and reads only those that its own devices
will hold. No process needs the whole value of a variable that is divided among devices. What is on disk
does not depend on the layout: neighbouring shards are joined and large arrays are cut, so a piece is a box
of the value with at most `MAX_PIECE_BYTES`. A value of one piece is stored under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from replicax.checkpoint._boxes import (
    Box,
    assembled,
    box_of,
    cut,
    joined,
    num_elements,
    overlap,
    shape_of,
    whole_box,
)
from replicax.variables import Variable

__all__ = [
    "Piece",
    "divided",
    "is_divided",
    "needed_boxes",
    "overlaps",
    "read_piece",
    "restored_array",
    "saved_pieces",
]

MAX_PIECE_BYTES = 32 * 2**20


class Piece(NamedTuple):
    """A part of a saved value."""

    name: str
    """The name of its array in the checkpoint."""
    box: Box
    process: int
    """The process that writes it."""
    num_bytes: int


# On the way to disk.


def divided(array: jax.Array, path: str, shape: Sequence[int]) -> list[Piece]:
    """The pieces of a value of this shape, whose array may be padded. All processes get the same list."""
    limit = max(1, MAX_PIECE_BYTES // array.dtype.itemsize)
    owned: dict[int, list[Box]] = {}
    for box, process in _owners(array, shape).items():
        owned.setdefault(process, []).append(box)
    found = [
        (box, process)
        for process, boxes in sorted(owned.items())
        for large in joined(boxes, limit)
        for box in cut(large, limit)
    ]
    return [
        Piece(f"{path}//{i}" if found[1:] else path, box, process, num_elements(box) * array.dtype.itemsize)
        for i, (box, process) in enumerate(found)
    ]


def _owners(array: jax.Array, shape: Sequence[int]) -> dict[Box, int]:
    """The shards of an array, without padding and copies, and which process saves each."""
    owners: dict[Box, int] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        box = box_of(index, shape)
        process = 0 if array.is_fully_addressable else device.process_index
        if num_elements(box):
            owners[box] = min(process, owners.get(box, process))
    return owners


def read_piece(array: jax.Array, shape: Sequence[int], box: Box) -> np.ndarray:
    """A copy of a box of the value, from shards of this process."""
    shards = {box_of(shard.index, shape): shard.data for shard in array.addressable_shards}
    parts = [(own, lambda data=data: _on_host(data)) for own, data in shards.items()]
    return assembled(box, array.dtype, parts)


def _on_host(array: jax.Array) -> np.ndarray:
    # A new array object of the same memory: JAX caches the copy on the host with the object.
    return np.asarray(jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array]))


# On the way back.


def saved_pieces(path: str, entry: Mapping[str, Any]) -> list[tuple[str, Box]]:
    """The names and boxes of the arrays in which a value is stored."""
    if 0 in entry["shape"]:
        return []
    if "pieces" not in entry:
        return [(path, whole_box(entry["shape"]))]
    boxes = [tuple((start, stop) for start, stop in box) for box in entry["pieces"]]
    return [(f"{path}//{i}", box) for i, box in enumerate(boxes)]


def is_divided(variable: Variable) -> bool:
    """Whether a device holds only a part of the value."""
    sharding = _sharding(variable)
    return sharding is not None and not sharding.is_fully_replicated


def _sharding(variable: Variable) -> Sharding | None:
    layout = variable.layout
    if layout.mesh is None or not layout.on_mesh or layout.differs:
        return None
    return layout.sharding(layout.mesh)


def needed_boxes(variable: Variable) -> list[Box]:
    """The boxes of the value that the devices of this process hold."""
    sharding = _sharding(variable)
    if sharding is None or sharding.is_fully_replicated:
        return [whole_box(variable.shape)]
    indices = sharding.addressable_devices_indices_map(variable._array_shape).values()
    return list({box_of(index, variable.shape) for index in indices if index is not None})


def restored_array(variable: Variable, read: Callable[[Box], np.ndarray]) -> jax.Array:
    """The array of a divided variable, from what `read` returns for each of its shards."""
    sharding = _sharding(variable)
    assert sharding is not None

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        value = read(box_of(index, variable.shape)).astype(variable.dtype, copy=False)
        wanted = shape_of(box_of(index, variable._array_shape))
        return np.pad(value, [(0, size - own) for size, own in zip(wanted, value.shape, strict=True)])

    return jax.make_array_from_callback(variable._array_shape, sharding, shard)


def overlaps(box: Box, others: Sequence[Box]) -> bool:
    """Whether a box has elements in common with one of the others."""
    return any(overlap(box, other) is not None for other in others)
