"""What one checkpoint holds, and the checksums that detect damaged files."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, final

import jax
import numpy as np

from replicax.errors import CheckpointError

__all__ = ["SMALL_BYTES", "Content", "Later", "Sums", "batches", "checksum", "sealed", "unsealed"]

_ONE_ITEM, _MANY_ITEMS = 1, 2
"""The formats: all arrays in one item of the checkpoint, which earlier versions can read, or in several."""

_BATCH_BYTES = 64 * 2**20
"""How much is written or read at a time. Orbax needs as much memory again."""

SMALL_BYTES = 2**16
"""Arrays up to this size are copied immediately: the counters of optimizers must be available."""

Sums = dict[str, dict[str, int]]
"""The checksums of arrays, by the names of the arrays, by the items of the checkpoint that have them."""


@final
@dataclasses.dataclass(frozen=True)
class Later:
    """An array that is copied to the host when it is written, and not before."""

    nbytes: int
    read: Callable[[], np.ndarray]


@final
@dataclasses.dataclass(frozen=True)
class Content:
    """What one checkpoint holds.

    Args:
        arrays: NumPy arrays by name; of large values, the pieces that this process writes.
        document: everything else, as JSON.
        own: the names of the arrays that this process writes, if it is not the first one.
    """

    arrays: dict[str, Any]
    document: dict[str, Any]
    own: frozenset[str] = frozenset()

    def take_own(self) -> dict[str, Any]:
        """The arrays that this process writes. The content has no arrays then: each can be freed alone."""
        is_first = jax.process_index() == 0
        arrays = {name: x for name, x in self.arrays.items() if is_first or name in self.own}
        self.arrays.clear()
        return arrays


def batches(sizes: Mapping[str, int]) -> list[list[str]]:
    """The names in groups that are small enough to be written or read at once."""
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not groups or size > room:
            groups.append([])
            room = max(size, _BATCH_BYTES)
        groups[-1].append(name)
        room -= size
    return groups


def sealed(document: Any, sums: Iterable[Sums], first_item: str) -> dict[str, Any]:
    """The document, with the checksums of all processes' arrays and of itself."""
    found = {item: own for process in sums for item, own in process.items()}
    is_one = found.keys() == {first_item}
    text = json.dumps({"document": document, "checksums": found[first_item] if is_one else found})
    version = _ONE_ITEM if is_one else _MANY_ITEMS
    return {"format": version, "text": text, "checksum": zlib.crc32(text.encode())}


class Unsealed(NamedTuple):
    """What `sealed` was given."""

    document: dict[str, Any]
    sums: Sums


def unsealed(document: Any, first_item: str) -> Unsealed:
    """What `sealed` was given; raises if it has changed since."""
    if not isinstance(document, dict) or "text" not in document or "checksum" not in document:
        raise CheckpointError("it was not written by rx.Checkpoint")
    if (version := document.get("format")) not in (_ONE_ITEM, _MANY_ITEMS):
        raise CheckpointError(f"it has the format {version!r}, and this version reads 1 and 2")
    text = str(document["text"])
    if zlib.crc32(text.encode()) != document["checksum"]:
        raise CheckpointError("its document is damaged")
    inner = json.loads(text)
    sums = {first_item: inner["checksums"]} if version == _ONE_ITEM else inner["checksums"]
    return Unsealed(inner["document"], sums)


def checksum(array: np.ndarray) -> int:
    """The checksum of an array."""
    data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return zlib.crc32(data)
