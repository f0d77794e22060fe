"""A folder of numbered checkpoints.

A checkpoint is written in its own working folder and renamed when it is complete, so anything with the name
of a checkpoint is complete. Other folders may have numbers as names too; they are neither listed nor
deleted. A store deletes only checkpoints that a manager has written with that prefix and number.
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
from replicax.checkpoint._cluster import meet, on_each_process, on_first_process
from replicax.checkpoint._content import Content, Later, Sums, batches, checksum, sealed
from replicax.checkpoint._entries import few, sizes_of
from replicax.checkpoint._orbax import (
    FIRST_ITEM,
    explained,
    has_document,
    item_name,
    read_document,
    write_arrays,
    write_document,
)
from replicax.checkpoint._saved import Saved
from replicax.checkpoint._writers import new_working_folder, remove_abandoned, remove_checkpoint
from replicax.errors import CheckpointError, CheckpointMissingError

__all__ = ["Store"]

_WORK = "checkpoint"
"""What a checkpoint is called while it is written, in its working folder."""
_FOLDER_SECONDS = 30.0

_MANAGED = "managed"
"""Where a document has the prefix and the number with which a manager wrote its checkpoint."""


@final
class Store:
    """A folder of numbered checkpoints.

    Args:
        directory: the folder; created by the first save.
        max_to_keep: how many of the newest to keep; None keeps all.
        prefix: what precedes the number in the name of a checkpoint.
        managed: whether the checkpoints that are written may be deleted when they are too old.
        own_folders: whether the processes of a cluster may have different folders. The first process writes
            into its own; those of the others are created, but stay empty.
        best: which checkpoints are kept instead of the newest.
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
        """The number after the newest checkpoint, and after anything else with such a name."""
        return max(self._numbers(), default=first - 1) + 1

    def _numbers(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        names = [path.name for path in self.directory.iterdir()]
        numbers = [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
        return sorted(int(text) for text in numbers if text.isdecimal() and str(int(text)) == text)

    def others(self) -> list[str]:
        """The names of checkpoints in the folder, whatever they are called."""
        paths = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted(path.name for path in paths if has_document(path))

    def path(self, step: int) -> pathlib.Path:
        """Where a checkpoint is."""
        return self.directory / f"{self._prefix}{step}"

    def meet(self, step: int, *, is_given: bool) -> int:
        """Agree on the number of a checkpoint with the other processes of a cluster; see `_cluster`."""
        return meet(self.path(step), step, is_given=is_given, own_folders=self._own_folders)

    def save(self, step: int, content: Content) -> None:
        """Write a checkpoint, then delete those that are too old.

        All processes of a cluster call this, after `meet`. Each writes its own arrays into a folder of the
        first one, which completes the checkpoint when all have written.
        """
        path = self.path(step)
        with explained(f"The checkpoint {path} could not be written"):
            if self._own_folders:  # a program for TensorFlow deletes its folder after saving
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
        """Write the arrays of this process; returns their checksums."""
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
        document = sealed(content.document, sums, FIRST_ITEM)
        document[_MANAGED] = [self._prefix, step] if self._managed else None
        write_document(folder / _WORK, document)
        (folder / _WORK).rename(self.path(step))
        self._delete_old(step)

    def _check_room(self, wanted: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if free < wanted:
            raise CheckpointError(
                f"The checkpoint needs {wanted / 1e6:.0f} MB, and {self.directory} has {free / 1e6:.0f} MB "
                "left. Nothing was written"
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
        """A larger one is better; equally good checkpoints are ordered by their age."""
        assert self._best is not None
        try:
            metrics = Saved.open(self.path(step)).document.get("metrics")
        except CheckpointError:
            metrics = None
        return self._best.score(metrics), step

    def _is_managed(self, step: int) -> bool:
        return read_document(self.path(step)).get(_MANAGED) == [self._prefix, step]

    def set_aside(self, step: int) -> None:
        """Rename a checkpoint that can't be read, so that its number is free."""
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):
                self.path(step).rename(self.directory / f"{self.path(step).name}.unreadable")

    def open(self, step: int) -> Saved:
        """An existing checkpoint."""
        path = self.path(step)
        if not path.is_dir():
            others = f"has the checkpoints {self.steps()}" if self.steps() else "has no checkpoints"
            raise CheckpointMissingError(f"There is no checkpoint {path}: {self.directory} {others}.")
        return Saved.open(path)


def _write_item(path: pathlib.Path, item: str, arrays: dict[str, Any]) -> dict[str, int]:
    """Write some arrays; returns their checksums."""
    found = {name: x.read() if isinstance(x, Later) else x for name, x in arrays.items()}
    write_arrays(path, item, found)
    return {name: checksum(array) for name, array in found.items()}


def _check_complete(content: Content, sums: list[Sums]) -> None:
    """Raise unless some process has written each array that the document names."""
    written = {name for process in sums for item in process.values() for name in item}
    entries = content.document["entries"]
    lost = [
        name for path, entry in entries.items() for name in sizes_of(path, entry) if name not in written
    ]
    if lost:
        raise CheckpointError(
            f"no process holds {few(lost)}. All processes must have the same variables in the checkpoint"
        )


def _wait_for(folder: pathlib.Path) -> None:
    """Wait until a folder of the first process is visible; network file systems may be late."""
    deadline = time.monotonic() + _FOLDER_SECONDS
    while not folder.is_dir():
        if time.monotonic() > deadline:
            raise CheckpointError(
                f"process {jax.process_index()} does not see the folder of the first process, {folder}. "
                "Variables are divided among the processes, so all must write into one folder: pass a "
                "directory on a file system that all machines share"
            )
        time.sleep(0.05)
