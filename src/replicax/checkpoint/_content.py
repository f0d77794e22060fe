"""The content of one checkpoint, and the checksums that detect damaged files."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, final

import jax
import numpy as np

from replicax.errors import CheckpointError

__all__ = ["SMALL_BYTES", "Content", "DeferredArray", "Sums", "batches", "checksum", "seal", "unseal"]

_ONE_ITEM, _MANY_ITEMS = 1, 2
"""Format 1 has all arrays in one Orbax item, which earlier versions can read; format 2 has several."""

_BATCH_BYTES = 64 * 2**20
"""How much is written or read at a time. Orbax needs the same amount of memory again."""

SMALL_BYTES = 2**16
"""Arrays up to this size are always copied at once: we look at the optimizers' step counters."""

Sums = dict[str, dict[str, int]]
"""Checksums: item of the checkpoint -> name of the array -> checksum."""


@final
@dataclasses.dataclass(frozen=True)
class DeferredArray:
    """An array that is copied to the host only when it is written."""

    nbytes: int
    read: Callable[[], np.ndarray]


@final
@dataclasses.dataclass(frozen=True)
class Content:
    """The content of one checkpoint.

    Args:
        arrays: NumPy arrays by name. Of large values, only the pieces that this process writes.
        document: everything else, as JSON.
        own: the names of the arrays that this process writes; ignored on process 0.
    """

    arrays: dict[str, Any]
    document: dict[str, Any]
    own: frozenset[str] = frozenset()

    def take_own(self) -> dict[str, Any]:
        """Hand over the arrays that this process writes, so that each can be freed once it is written."""
        is_first = jax.process_index() == 0
        arrays = {name: x for name, x in self.arrays.items() if is_first or name in self.own}
        self.arrays.clear()
        return arrays


def batches(sizes: Mapping[str, int]) -> list[list[str]]:
    """Group names into batches that are small enough to write or read at once."""
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not groups or size > room:
            groups.append([])
            room = max(size, _BATCH_BYTES)
        groups[-1].append(name)
        room -= size
    return groups


def seal(document: Any, sums: Iterable[Sums], first_item: str) -> dict[str, Any]:
    """Add the checksums of all processes' arrays, and of the document itself, to a document."""
    found = {item: own for process in sums for item, own in process.items()}
    is_one = found.keys() == {first_item}
    text = json.dumps({"document": document, "checksums": found[first_item] if is_one else found})
    version = _ONE_ITEM if is_one else _MANY_ITEMS
    return {"format": version, "text": text, "checksum": zlib.crc32(text.encode())}


class Unsealed(NamedTuple):
    """What `seal` was given."""

    document: dict[str, Any]
    sums: Sums


def unseal(document: Any, first_item: str) -> Unsealed:
    """Undo `seal`; raises if the document has changed since."""
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
    data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return zlib.crc32(data)
