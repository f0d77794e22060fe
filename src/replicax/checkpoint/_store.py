"""A folder of numbered checkpoints.

A checkpoint is written to a working folder and renamed when it is complete, so anything named like a
checkpoint is complete. Other folders with numbers as names are neither listed nor deleted: a store deletes
only checkpoints that a manager wrote under that prefix and number.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import shutil
import time
from typing import Any, final

import jax

from replicax.checkpoint._best import Best
from replicax.checkpoint._cluster import agree_on_step, on_each_process, on_first_process
from replicax.checkpoint._content import Content, DeferredArray, Sums, batches, checksum, seal
from replicax.checkpoint._entries import shorten, sizes_of
from replicax.checkpoint._orbax import (
    FIRST_ITEM,
    has_document,
    item_name,
    read_document,
    wrap_errors,
    write_arrays,
    write_document,
)
from replicax.checkpoint._saved import Saved
from replicax.checkpoint._writers import new_working_folder, remove_abandoned, remove_checkpoint
from replicax.errors import CheckpointError, CheckpointMissingError

__all__ = ["Store"]

_WORK = "checkpoint"
"""The name of a checkpoint inside its working folder, while it is written."""
_FOLDER_SECONDS = 30.0

_MANAGED = "managed"
"""The key of a document under which a manager records the prefix and number of its checkpoint."""


@final
class Store:
    """A folder of numbered checkpoints.

    Args:
        directory: the folder; created by the first save.
        max_to_keep: how many of the newest to keep; None keeps all.
        prefix: what precedes the number in the name of a checkpoint.
        managed: whether the checkpoints that this store writes may be deleted later.
        own_folders: whether the processes of a cluster may have different folders. Process 0 writes to its
            folder; those of the others are created but stay empty.
        best: keep the best checkpoints by this order instead of the newest.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = None,
        prefix: str = "",
        managed: bool = False,
        own_folders: bool = False,
        best: Best | None = None,
    ) -> None:
        self.directory = pathlib.Path(directory).absolute()
        self._max_to_keep = max_to_keep
        self._prefix = prefix
        self._managed = managed
        self._own_folders = own_folders
        self._best = best

    def steps(self) -> list[int]:
        """The numbers of the complete checkpoints, oldest first."""
        return [step for step in self._numbers() if has_document(self.path(step))]

    def next_step(self, first: int = 0) -> int:
        """The number after the newest checkpoint, and after anything else that is named like one."""
        return max(self._numbers(), default=first - 1) + 1

    def _numbers(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        names = [path.name for path in self.directory.iterdir()]
        numbers = [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
        return sorted(int(text) for text in numbers if text.isdecimal() and str(int(text)) == text)

    def others(self) -> list[str]:
        """The names of all checkpoints in the folder, with any prefix."""
        paths = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted(path.name for path in paths if has_document(path))

    def path(self, step: int) -> pathlib.Path:
        """The folder of a checkpoint."""
        return self.directory / f"{self._prefix}{step}"

    def agree_on_step(self, step: int, *, is_given: bool) -> int:
        """Agree with the other processes on the number of a checkpoint; see `_cluster.py`."""
        return agree_on_step(self.path(step), step, is_given=is_given, own_folders=self._own_folders)

    def save(self, step: int, content: Content) -> None:
        """Write a checkpoint, then delete old ones.

        All processes of a cluster call this, after `agree_on_step`. Each writes its arrays to the working
        folder of process 0, which commits the checkpoint when all have finished.
        """
        path = self.path(step)
        with wrap_errors(f"The checkpoint {path} could not be written"):
            if self._own_folders:  # TensorFlow programs delete their folder after saving
                self.directory.mkdir(parents=True, exist_ok=True)
            name = self._prefix if self._own_folders else str(self.directory)
            folder = pathlib.Path(on_first_process(name, lambda: str(self._begin(path))))
            try:
                sums = on_each_process(name, lambda: self._write_arrays(folder, content))
                on_first_process(name, lambda: self._complete(step, folder, content, sums))
            finally:
                if jax.process_index() == 0:
                    shutil.rmtree(folder, ignore_errors=True)

    def _begin(self, path: pathlib.Path) -> pathlib.Path:
        if path.exists():
            raise CheckpointError("something with that name already exists")
        self.directory.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.directory)
        return new_working_folder(self.directory, path.name)

    def _write_arrays(self, folder: pathlib.Path, content: Content) -> Sums:
        """Write this process's arrays; returns their checksums."""
        arrays, process = content.take_own(), jax.process_index()
        sizes = {name: array.nbytes for name, array in arrays.items()}
        if process and not sizes:
            return {}
        _wait_for(folder)
        self._check_room(sum(sizes.values()))
        groups = {item_name(process, i): names for i, names in enumerate(batches(sizes) or [[]])}
        return {
            item: _write_item(folder / _WORK, item, {name: arrays.pop(name) for name in names})
            for item, names in groups.items()
        }

    def _complete(self, step: int, folder: pathlib.Path, content: Content, sums: list[Sums]) -> None:
        _check_complete(content, sums)
        document = seal(content.document, sums, FIRST_ITEM)
        document[_MANAGED] = [self._prefix, step] if self._managed else None
        write_document(folder / _WORK, document)
        (folder / _WORK).rename(self.path(step))
        self._delete_old(step)

    def _check_room(self, wanted: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if free < wanted:
            raise CheckpointError(
                f"The checkpoint needs {wanted / 1e6:.0f} MB, but {self.directory} has only "
                f"{free / 1e6:.0f} MB left. Nothing was written"
            )

    def _delete_old(self, newest: int) -> None:
        if self._max_to_keep is None:
            return
        steps = [step for step in self.steps() if step <= newest and self._is_managed(step)]
        ranked = sorted(steps, key=self._score) if self._best else steps
        for step in ranked[: -self._max_to_keep]:
            if step != newest:
                remove_checkpoint(self.path(step))

    def best_step(self) -> int | None:
        """The number of the best checkpoint; None if none has metrics."""
        scores = {step: self._score(step) for step in self.steps()}
        known = [step for step, (score, _) in scores.items() if score > -math.inf]
        return max(known, key=lambda step: scores[step], default=None)

    def _score(self, step: int) -> tuple[float, int]:
        """Higher is better; on a tie the newer checkpoint wins."""
        assert self._best is not None
        try:
            metrics = Saved.open(self.path(step)).document.get("metrics")
        except CheckpointError:
            metrics = None
        return self._best.score(metrics), step

    def _is_managed(self, step: int) -> bool:
        return read_document(self.path(step)).get(_MANAGED) == [self._prefix, step]

    def set_aside(self, step: int) -> None:
        """Rename an unreadable checkpoint, to free its number."""
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):
                self.path(step).rename(self.directory / f"{self.path(step).name}.unreadable")

    def open(self, step: int) -> Saved:
        """Open a checkpoint; raises if it does not exist."""
        path = self.path(step)
        if not path.is_dir():
            others = f"has the checkpoints {self.steps()}" if self.steps() else "has no checkpoints"
            raise CheckpointMissingError(f"There is no checkpoint {path}: {self.directory} {others}.")
        return Saved.open(path)


def _write_item(path: pathlib.Path, item: str, arrays: dict[str, Any]) -> dict[str, int]:
    """Write one item; returns the checksums of its arrays."""
    found = {name: x.read() if isinstance(x, DeferredArray) else x for name, x in arrays.items()}
    write_arrays(path, item, found)
    return {name: checksum(array) for name, array in found.items()}


def _check_complete(content: Content, sums: list[Sums]) -> None:
    """Raise unless every array in the document was written by some process."""
    written = {name for process in sums for item in process.values() for name in item}
    entries = content.document["entries"]
    lost = [
        name for path, entry in entries.items() for name in sizes_of(path, entry) if name not in written
    ]
    if lost:
        raise CheckpointError(
            f"no process wrote {shorten(lost)}. All processes must save the same variables"
        )


def _wait_for(folder: pathlib.Path) -> None:
    """Wait until a folder that process 0 created is visible here; network file systems may lag."""
    deadline = time.monotonic() + _FOLDER_SECONDS
    while not folder.is_dir():
        if time.monotonic() > deadline:
            raise CheckpointError(
                f"process {jax.process_index()} does not see the folder of the first process, {folder}. "
                "Variables are sharded over the processes, so all must write to the same folder: pass a "
                "directory on a file system that all machines share"
            )
        time.sleep(0.05)
