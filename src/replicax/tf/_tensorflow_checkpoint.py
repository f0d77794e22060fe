"""Reads TensorFlow checkpoints without TensorFlow.

`PREFIX.index` is a sorted table in LevelDB's format: blocks of keys and values, an index of the blocks and
a footer. A key is the name of a tensor. Its value is a protocol buffer with the dtype, the shape, and the
offset of the bytes in one of the files `PREFIX.data-00000-of-00001`.
"""

from __future__ import annotations

import os
import pathlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from replicax.errors import CheckpointError

__all__ = ["is_tensorflow_checkpoint", "read_tensorflow_checkpoint"]

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_DTYPES: dict[int, Any] = {
    1: np.float32,
    2: np.float64,
    3: np.int32,
    4: np.uint8,
    5: np.int16,
    6: np.int8,
    8: np.complex64,
    9: np.int64,
    10: np.bool_,
    14: jnp.bfloat16,
    17: np.uint16,
    18: np.complex128,
    19: np.float16,
    22: np.uint32,
    23: np.uint64,
}
"""TensorFlow's dtype numbers, without strings."""


def is_tensorflow_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is the prefix of a TensorFlow checkpoint."""
    return pathlib.Path(f"{os.fspath(path)}.index").is_file()


def read_tensorflow_checkpoint(path: str | os.PathLike[str]) -> Mapping[str, np.ndarray]:
    """The values of a checkpoint, by name; strings are skipped."""
    prefix = os.fspath(path)
    table = dict(_read_table(pathlib.Path(f"{prefix}.index").read_bytes(), prefix))
    num_shards = _fields(table.pop(b"")).get(1, [1])[0]
    entries = {key.decode(): _entry(value) for key, value in table.items()}
    files = [np.memmap(f"{prefix}.data-{i:05}-of-{num_shards:05}", mode="r") for i in range(num_shards)]
    return {
        name: _value(files[entry.shard], entry) for name, entry in entries.items() if entry.dtype in _DTYPES
    }


class _Entry(NamedTuple):
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int


def _entry(data: bytes) -> _Entry:
    fields = _fields(data)
    dims = _fields(fields.get(2, [b""])[0]).get(2, [])
    shape = tuple(_fields(dim).get(1, [0])[0] for dim in dims)
    dtype, shard, offset, size = (fields.get(number, [0])[0] for number in (1, 3, 4, 5))
    return _Entry(dtype, shape, shard, offset, size)


def _value(data: np.ndarray, entry: _Entry) -> np.ndarray:
    raw = np.array(data[entry.offset : entry.offset + entry.size])
    return raw.view(np.dtype(_DTYPES[entry.dtype])).reshape(entry.shape)


def _read_table(data: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise CheckpointError(f"{name}.index is damaged, or not the index of a TensorFlow checkpoint.")
    place = _varint(footer, _varint(footer, 0)[1])[1]  # skip the handle of the metaindex block
    for _, handle in _block(data, footer, place, name):
        yield from _block(data, handle, 0, name)


def _block(data: bytes, handle: bytes, place: int, name: str) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of the block whose handle is in `handle` at `place`."""
    offset, place = _varint(handle, place)
    size, _ = _varint(handle, place)
    block = data[offset : offset + size]
    if data[offset + size] != 0:
        raise CheckpointError(f"{name}.index is compressed, which is not supported. Save it again.")
    (num_restarts,) = struct.unpack("<I", block[-4:])
    end, place, key = len(block) - 4 - 4 * num_restarts, 0, b""
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        length, place = _varint(block, place)
        key = key[:shared] + block[place : place + own]
        place += own
        yield key, block[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number, and the position after it."""
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a protocol buffer, by number: integers, and the bytes of strings and messages."""
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        if tag & 7 == 0:
            value, place = _varint(data, place)
        else:
            size, place = _varint(data, place) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], place)
            value, place = data[place : place + size], place + size
        found.setdefault(tag >> 3, []).append(value)
    return found
