"""A checkpoint that is being restored: its arrays are read when they are needed.

All arrays that will be needed are read and compared with their checksums before anything is restored. As
many as there is room for stay in memory until they are restored; the others are read again. So restoring
takes a bounded amount of memory, and a damaged checkpoint changes nothing.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from replicax.checkpoint._content import SMALL_BYTES, Content, Sums, batches, checksum, unsealed
from replicax.checkpoint._orbax import FIRST_ITEM, explained, read_arrays, read_document
from replicax.errors import CheckpointError

__all__ = ["Saved"]


@final
class Saved:
    """A checkpoint on disk, or the content of one.

    Args:
        document: its document.
        path: where it is; None if all arrays are in memory.
        sums: the checksums of its arrays.
    """

    def __init__(self, document: dict[str, Any], path: pathlib.Path | None, sums: Sums) -> None:
        self.document = document
        self.kept: dict[str, np.ndarray] = {}
        """The arrays in memory."""
        self.is_damaged = False
        """Whether an array was found to be damaged, here or by another process."""
        self._path, self._sums = path, sums

    @classmethod
    def open(cls, path: pathlib.Path) -> Saved:
        """The checkpoint in a folder."""
        with explained(f"The checkpoint {path} could not be read"):
            found = unsealed(read_document(path), FIRST_ITEM)
        return cls(found.document, path, found.sums)

    @classmethod
    def of(cls, content: Content) -> Saved:
        """A content in memory."""
        saved = cls(content.document, None, {})
        saved.kept = dict(content.arrays)
        return saved

    def verify(self, sizes: Mapping[str, int], room: int) -> None:
        """Read arrays and compare them with their checksums.

        Args:
            sizes: the sizes of the arrays in bytes, by their names.
            room: how many bytes may stay in memory.
        """
        for names in batches(sizes):
            for name, array in self.load(names).arrays.items():
                if array.nbytes <= max(SMALL_BYTES, room):
                    self.kept[name] = array
                    room -= array.nbytes

    def load(self, names: Iterable[str]) -> Content:
        """The content, with these of its arrays."""
        names = list(names)
        arrays = {name: self.kept[name] for name in names if name in self.kept}
        rest = [name for name in names if name not in arrays]
        if rest and self._path is not None:
            with explained(f"The checkpoint {self._path} could not be read"):
                arrays |= self._read(rest)
        return Content(arrays, self.document)

    def _read(self, names: list[str]) -> dict[str, np.ndarray]:
        assert self._path is not None
        found: dict[str, np.ndarray] = {}
        for item, sums in self._sums.items():
            own = [name for name in names if name in sums]
            if own:
                found |= read_arrays(self._path, item, own)
            for name in own:
                if name not in found or checksum(found[name]) != sums[name]:
                    raise CheckpointError(f"the array {name} is damaged")
        return found

    def drop(self, names: Iterable[str]) -> None:
        """Remove arrays that were restored from memory, except for the counters of optimizers."""
        for name in names:
            if not name.endswith("/iterations"):
                self.kept.pop(name, None)
