"""What one checkpoint holds, and the checksums that show whether a file was damaged since."""

from __future__ import annotations

import dataclasses
import json
import zlib
from typing import Any, final

import numpy as np

from replicax.errors import CheckpointError

__all__ = ["Content", "sealed", "unsealed"]

_FORMAT = 1


@final
@dataclasses.dataclass(frozen=True)
class Content:
    """What one checkpoint holds.

    Args:
        arrays: NumPy arrays by name.
        document: everything else, as JSON.
    """

    arrays: dict[str, np.ndarray]
    document: dict[str, Any]

    @property
    def num_bytes(self) -> int:
        """The size of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def sealed(content: Content) -> dict[str, Any]:
    """The document, with checksums of the arrays and of itself."""
    sums = {name: _checksum(array) for name, array in content.arrays.items()}
    text = json.dumps({"document": content.document, "checksums": sums})
    return {"format": _FORMAT, "text": text, "checksum": zlib.crc32(text.encode())}


def unsealed(document: Any, arrays: dict[str, np.ndarray]) -> Content:
    """The content that `sealed` was given; raises if anything has changed since."""
    if not isinstance(document, dict) or "text" not in document or "checksum" not in document:
        raise CheckpointError("it was not written by rx.Checkpoint")
    if document.get("format") != _FORMAT:
        raise CheckpointError(
            f"it has the format {document.get('format')!r}, and this version reads {_FORMAT}"
        )
    text = str(document["text"])
    if zlib.crc32(text.encode()) != document["checksum"]:
        raise CheckpointError("its document is damaged")
    inner = json.loads(text)
    found = {name: np.asarray(arrays[name]) for name in inner["checksums"] if name in arrays}
    for name, checksum in inner["checksums"].items():
        if name not in found or _checksum(found[name]) != checksum:
            raise CheckpointError(f"the array {name} is damaged")
    return Content(found, inner["document"])


def _checksum(array: np.ndarray) -> int:
    data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return zlib.crc32(data)
