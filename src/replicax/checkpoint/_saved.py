"""A checkpoint that is being restored, with arrays that are read on demand.

All arrays that a restore needs are read and checked against their checksums before anything changes. As
many as fit into a fixed budget stay in memory until they are restored; the others are read a second time.
So a damaged checkpoint changes nothing, and restoring takes a bounded amount of memory.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from replicax.checkpoint._content import SMALL_BYTES, Content, Sums, batches, checksum, unseal
from replicax.checkpoint._orbax import FIRST_ITEM, read_arrays, read_document, wrap_errors
from replicax.errors import CheckpointError

__all__ = ["Saved"]


@final
class Saved:
    """A checkpoint on disk or in memory.

    Args:
        document: its document.
        path: its folder; None if all arrays are in memory.
        sums: the checksums of its arrays.
    """

    def __init__(self, document: dict[str, Any], path: pathlib.Path | None, sums: Sums) -> None:
        self.document = document
        self.kept: dict[str, np.ndarray] = {}
        """The arrays in memory."""
        self.is_damaged = False
        """Whether this or another process found a damaged array."""
        self._path, self._sums = path, sums

    @classmethod
    def open(cls, path: pathlib.Path) -> Saved:
        """Open the checkpoint in a folder."""
        with wrap_errors(f"The checkpoint {path} could not be read"):
            found = unseal(read_document(path), FIRST_ITEM)
        return cls(found.document, path, found.sums)

    @classmethod
    def of(cls, content: Content) -> Saved:
        """Wrap content that is in memory."""
        saved = cls(content.document, None, {})
        saved.kept = dict(content.arrays)
        return saved

    def verify(self, sizes: Mapping[str, int], room: int) -> None:
        """Read arrays and check them against their checksums.

        Args:
            sizes: array name -> size in bytes.
            room: how many bytes may stay in memory.
        """
        for names in batches(sizes):
            for name, array in self.load(names).arrays.items():
                if array.nbytes <= max(SMALL_BYTES, room):
                    self.kept[name] = array
                    room -= array.nbytes

    def load(self, names: Iterable[str]) -> Content:
        """The content, with only these arrays."""
        names = list(names)
        arrays = {name: self.kept[name] for name in names if name in self.kept}
        rest = [name for name in names if name not in arrays]
        if rest and self._path is not None:
            with wrap_errors(f"The checkpoint {self._path} could not be read"):
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
        """Free arrays that have been restored, except for the optimizers' step counters."""
        for name in names:
            if not name.endswith("/iterations"):
                self.kept.pop(name, None)
