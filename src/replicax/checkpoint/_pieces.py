"""Sharded values are saved and restored in pieces.

Each process writes only pieces that its devices hold and reads only pieces that its devices need, so no
process ever has the whole value of a sharded variable. The files do not depend on the layout: adjacent
shards are merged and large arrays are split, which makes a piece a box of the value with at most
`MAX_PIECE_BYTES`. A value of one piece is stored under the variable's own name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from replicax._jax import with_all_shards
from replicax.checkpoint._boxes import (
    Box,
    assemble,
    box_of,
    intersection,
    merge,
    num_elements,
    shape_of,
    split,
    whole_box,
)
from replicax.variables import Variable

__all__ = [
    "Piece",
    "split_into_pieces",
    "is_divided",
    "needed_boxes",
    "overlaps",
    "read_piece",
    "restored_array",
    "saved_pieces",
]

MAX_PIECE_BYTES = 32 * 2**20


class Piece(NamedTuple):
    """One box of a saved value."""

    name: str
    """The name of its array in the checkpoint."""
    box: Box
    process: int
    """The process that writes it."""
    num_bytes: int


# Saving.


def split_into_pieces(array: jax.Array, path: str, shape: Sequence[int]) -> list[Piece]:
    """The pieces of a value of this shape, whose array may be padded; the same list on all processes."""
    limit = max(1, MAX_PIECE_BYTES // array.dtype.itemsize)
    owned: dict[int, list[Box]] = {}
    for box, process in _owners(array, shape).items():
        owned.setdefault(process, []).append(box)
    found = [
        (box, process)
        for process, boxes in sorted(owned.items())
        for large in merge(boxes, limit)
        for box in split(large, limit)
    ]
    return [
        Piece(f"{path}//{i}" if found[1:] else path, box, process, num_elements(box) * array.dtype.itemsize)
        for i, (box, process) in enumerate(found)
    ]


def _owners(array: jax.Array, shape: Sequence[int]) -> dict[Box, int]:
    """The distinct shards of an array, without padding, and the process that saves each."""
    owners: dict[Box, int] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        box = box_of(index, shape)
        process = 0 if array.is_fully_addressable else device.process_index
        if num_elements(box):
            owners[box] = min(process, owners.get(box, process))
    return owners


def read_piece(array: jax.Array, shape: Sequence[int], box: Box) -> np.ndarray:
    """Copy a box of the value from this process's shards."""
    shards = {box_of(shard.index, shape): shard.data for shard in with_all_shards(array).addressable_shards}
    parts = [(own, lambda data=data: _on_host(data)) for own, data in shards.items()]
    return assemble(box, array.dtype, parts)


def _on_host(array: jax.Array) -> np.ndarray:
    # Copy through a new array object on the same buffer: JAX caches host copies on the array object.
    return np.asarray(jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array]))


# Restoring.


def saved_pieces(path: str, entry: Mapping[str, Any]) -> list[tuple[str, Box]]:
    """The names and boxes of the arrays in which a value is stored."""
    if 0 in entry["shape"]:
        return []
    if "pieces" not in entry:
        return [(path, whole_box(entry["shape"]))]
    boxes = [tuple((start, stop) for start, stop in box) for box in entry["pieces"]]
    return [(f"{path}//{i}", box) for i, box in enumerate(boxes)]


def is_divided(variable: Variable) -> bool:
    """Whether each device holds only a part of the value."""
    sharding = _sharding(variable)
    return sharding is not None and not sharding.is_fully_replicated


def _sharding(variable: Variable) -> Sharding | None:
    layout = variable.layout
    if layout.mesh is None or not layout.has_value_on_mesh:
        return None
    return layout.sharding(layout.mesh)


def needed_boxes(variable: Variable) -> list[Box]:
    """The boxes of the value that this process's devices hold."""
    sharding = _sharding(variable)
    if sharding is None or sharding.is_fully_replicated:
        return [whole_box(variable.shape)]
    indices = sharding.addressable_devices_indices_map(variable._array_shape).values()
    return list({box_of(index, variable.shape) for index in indices if index is not None})


def restored_array(variable: Variable, read: Callable[[Box], np.ndarray]) -> jax.Array:
    """The array of a sharded variable; `read` returns the value of a box."""
    sharding = _sharding(variable)
    assert sharding is not None

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        value = read(box_of(index, variable.shape)).astype(variable.dtype, copy=False)
        wanted = shape_of(box_of(index, variable._array_shape))
        return np.pad(value, [(0, size - own) for size, own in zip(wanted, value.shape, strict=True)])

    return jax.make_array_from_callback(variable._array_shape, sharding, shard)


def overlaps(box: Box, others: Sequence[Box]) -> bool:
    """Whether a box intersects any of the others."""
    return any(intersection(box, other) is not None for other in others)
