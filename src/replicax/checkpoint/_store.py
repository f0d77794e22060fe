"""A checkpoint on disk, written and read by Orbax: arrays by name, and a document that describes them.

Orbax writes into a temporary folder and renames it when everything is there, so what has the name of a
checkpoint is complete. Whether it still is what was written, the checksums in the document tell: of every
array, and of the document itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import shutil
import threading
import zlib
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from replicax.errors import CheckpointError, CheckpointMissingError

__all__ = ["Content", "Store"]

_ARRAYS, _DOCUMENT = "arrays", "document"
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


@final
class Store:
    """A folder of numbered checkpoints.

    Args:
        directory: the folder; made if it is not there.
        max_to_keep: how many of the newest are kept; None keeps all.
        prefix: what the name of a checkpoint has before its number.
    """

    def __init__(
        self, directory: str | os.PathLike[str], max_to_keep: int | None = None, prefix: str = ""
    ) -> None:
        """Nothing is touched before the first save."""
        self.directory = pathlib.Path(directory).absolute()
        self._max_to_keep = max_to_keep
        self._prefix = prefix

    def steps(self) -> list[int]:
        """The numbers of the complete checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        numbers = [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
        return sorted(int(text) for text in numbers if text.isdecimal() and str(int(text)) == text)

    def others(self) -> list[str]:
        """The names of checkpoints in the folder, whatever they are called."""
        return sorted(path.parent.name for path in self.directory.glob(f"*/{_DOCUMENT}"))

    def path(self, step: int) -> pathlib.Path:
        """Where a checkpoint is."""
        return self.directory / f"{self._prefix}{step}"

    def save(self, step: int, content: Content) -> None:
        """Write a checkpoint, then delete those that are too old. An existing one of that number stays."""
        import orbax.checkpoint as ocp

        if self.path(step).exists():
            raise CheckpointError(f"There is a checkpoint {self.path(step)} already.")
        _writing.append(self.directory)
        try:
            with _explained(f"The checkpoint {self.path(step)} could not be written"), _one_at_a_time():
                self.directory.mkdir(parents=True, exist_ok=True)
                self._check_room(content)
                items = {
                    _ARRAYS: ocp.args.PyTreeSave(_storable(content.arrays)),
                    _DOCUMENT: ocp.args.JsonSave(_sealed(content)),
                }
                with ocp.Checkpointer(_handler()) as checkpointer:
                    checkpointer.save(self.path(step), args=ocp.args.Composite(**items))
        except BaseException:
            self._remove_half_written(step)
            raise
        finally:
            _writing.remove(self.directory)
        self._delete_old(step)

    def _remove_half_written(self, step: int) -> None:
        with contextlib.suppress(OSError):
            for path in self.directory.glob(f"{self.path(step).name}.orbax-checkpoint-tmp*"):
                shutil.rmtree(path, ignore_errors=True)

    def _check_room(self, content: Content) -> None:
        free, wanted = shutil.disk_usage(self.directory).free, content.num_bytes
        if free < wanted:
            raise CheckpointError(
                f"The checkpoint needs {wanted / 1e6:.0f} MB, and {self.directory} has {free / 1e6:.0f} MB "
                "left. Nothing was written; older checkpoints are as they were."
            )

    def _delete_old(self, newest: int) -> None:
        if self._max_to_keep is None:
            return
        steps = [step for step in self.steps() if step <= newest]
        for step in steps[: -self._max_to_keep]:
            # First out of sight: a checkpoint that is only half deleted must not look like one.
            hidden = self.directory / f".deleted-{self.path(step).name}"
            with contextlib.suppress(OSError):
                self.path(step).rename(hidden)
                shutil.rmtree(hidden)

    def set_aside(self, step: int) -> None:
        """Give a checkpoint that can't be read another name, so that its number is free."""
        with contextlib.suppress(OSError):
            self.path(step).rename(self.directory / f"{self.path(step).name}.unreadable")

    def clean(self) -> None:
        """Remove what writers that were killed left behind. No other process may be writing."""
        if not self.directory.is_dir() or self.directory in _writing:
            return
        for path in self.directory.iterdir():
            if ".orbax-checkpoint-tmp" in path.name or path.name.startswith(".deleted-"):
                shutil.rmtree(path, ignore_errors=True)

    def load(self, step: int) -> Content:
        """Read a checkpoint."""
        import orbax.checkpoint as ocp

        path = self.path(step)
        if not path.is_dir():
            others = f"There are {self.steps()}" if self.steps() else "There is none"
            raise CheckpointMissingError(f"There is no checkpoint {path}. {others} in {self.directory}.")
        with _explained(f"The checkpoint {path} could not be read"), _one_at_a_time():
            items = {_ARRAYS: ocp.args.PyTreeRestore(), _DOCUMENT: ocp.args.JsonRestore()}
            with ocp.Checkpointer(_handler()) as checkpointer:
                restored = checkpointer.restore(path, args=ocp.args.Composite(**items))
            return _unsealed(restored[_DOCUMENT], dict(restored[_ARRAYS]))


def _checksum(array: np.ndarray) -> int:
    data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return zlib.crc32(data)


def _sealed(content: Content) -> dict[str, Any]:
    """The document, with checksums of the arrays and of itself."""
    sums = {name: _checksum(array) for name, array in content.arrays.items()}
    text = json.dumps({"document": content.document, "checksums": sums})
    return {"format": _FORMAT, "text": text, "checksum": zlib.crc32(text.encode())}


def _unsealed(sealed: Any, arrays: dict[str, np.ndarray]) -> Content:
    """What `_sealed` was made from; raises if anything is not as it was."""
    if not isinstance(sealed, dict) or "text" not in sealed or "checksum" not in sealed:
        raise CheckpointError("it was not written by rx.Checkpoint")
    if sealed.get("format") != _FORMAT:
        raise CheckpointError(
            f"it has the format {sealed.get('format')!r}, and this version reads {_FORMAT}"
        )
    text = str(sealed["text"])
    if zlib.crc32(text.encode()) != sealed["checksum"]:
        raise CheckpointError("its document is damaged")
    inner = json.loads(text)
    found = {name: arrays[name] for name in inner["checksums"] if name in arrays}
    for name, checksum in inner["checksums"].items():
        if name not in found or _checksum(np.asarray(found[name])) != checksum:
            raise CheckpointError(f"the array {name} is damaged")
    return Content({name: np.asarray(array) for name, array in found.items()}, inner["document"])


def _handler() -> Any:
    import orbax.checkpoint as ocp

    # Parameters are noise to a compressor: it would take most of the time and save nothing.
    arrays = ocp.PyTreeCheckpointHandler(use_compression=False)
    return ocp.CompositeCheckpointHandler(**{_ARRAYS: arrays, _DOCUMENT: ocp.JsonCheckpointHandler()})


def _storable(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Orbax can't store a structure without arrays."""
    return arrays or {"": np.zeros(1, np.int8)}


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        detail = " ".join([lines[0][:400], *lines[-1:]]) if len(lines) > 1 else "".join(lines)[:800]
        kind = "" if isinstance(error, CheckpointError) else f"{type(error).__name__}: "
        raise CheckpointError(
            f"{what}: {kind}{detail or 'no reason given'}. Other checkpoints are as they were."
        ) from error


_lock = threading.Lock()
_writing: list[pathlib.Path] = []
"""The folders that this process is writing to."""


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Orbax does not write two checkpoints at once; and it logs pages about every step of its work."""
    with _lock:
        logger = logging.getLogger("absl")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
