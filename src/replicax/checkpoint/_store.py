"""A folder of numbered checkpoints.

A checkpoint is written in a folder of its own and renamed when everything is there, so what has the name of
a checkpoint is complete. Folders with other content may have numbers as names, too; they are neither listed
nor deleted. Of the checkpoints, a store deletes only those that a manager has written with that prefix and
number.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import final

import jax

from replicax.checkpoint._cluster import meet, on_first_process
from replicax.checkpoint._content import Content, sealed, unsealed
from replicax.checkpoint._orbax import has_document, read_document, read_items, write_items
from replicax.checkpoint._writers import remove_abandoned, remove_checkpoint, working_folder
from replicax.errors import CheckpointError, CheckpointMissingError

__all__ = ["Store"]

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
            into its own; those of the others are created, and stay empty.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = None,
        prefix: str = "",
        managed: bool = False,
        own_folders: bool = False,
    ) -> None:
        self.directory = pathlib.Path(directory).absolute()
        self._max_to_keep = max_to_keep
        self._prefix = prefix
        self._managed = managed
        self._own_folders = own_folders

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

        All processes of a cluster call this, after `meet`, and the first one writes.
        """
        path = self.path(step)
        with _explained(f"The checkpoint {path} could not be written"):
            if self._own_folders:  # a program for TensorFlow deletes its folder after saving
                self.directory.mkdir(parents=True, exist_ok=True)
            name = self._prefix if self._own_folders else str(self.directory)
            on_first_process(name, lambda: self._write(step, content))

    def _write(self, step: int, content: Content) -> None:
        path = self.path(step)
        if path.exists():
            raise CheckpointError("something of that name is there already")
        self.directory.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.directory)
        self._check_room(content)
        document = {**sealed(content), _MANAGED: [self._prefix, step] if self._managed else None}
        with working_folder(self.directory, path.name) as folder:
            write_items(folder / "checkpoint", content.arrays, document)
            (folder / "checkpoint").rename(path)
        self._delete_old(step)

    def _check_room(self, content: Content) -> None:
        free, wanted = shutil.disk_usage(self.directory).free, content.num_bytes
        if free < wanted:
            raise CheckpointError(
                f"The checkpoint needs {wanted / 1e6:.0f} MB, and {self.directory} has {free / 1e6:.0f} MB "
                "left. Nothing was written"
            )

    def _delete_old(self, newest: int) -> None:
        if self._max_to_keep is None:
            return
        steps = [step for step in self.steps() if step <= newest and self._is_managed(step)]
        for step in steps[: -self._max_to_keep]:
            remove_checkpoint(self.path(step))

    def _is_managed(self, step: int) -> bool:
        return read_document(self.path(step)).get(_MANAGED) == [self._prefix, step]

    def set_aside(self, step: int) -> None:
        """Rename a checkpoint that can't be read, so that its number is free."""
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):
                self.path(step).rename(self.directory / f"{self.path(step).name}.unreadable")

    def load(self, step: int) -> Content:
        """Read a checkpoint."""
        path = self.path(step)
        if not path.is_dir():
            others = f"has the checkpoints {self.steps()}" if self.steps() else "has no checkpoints"
            raise CheckpointMissingError(f"There is no checkpoint {path}: {self.directory} {others}.")
        with _explained(f"The checkpoint {path} could not be read"):
            arrays, document = read_items(path)
            return unsealed(document, arrays)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        detail = " ".join([lines[0][:400], *lines[-1:]]) if len(lines) > 1 else "".join(lines)[:800]
        kind = "" if isinstance(error, CheckpointError) else f"{type(error).__name__}: "
        raise CheckpointError(
            f"{what}: {kind}{detail or 'no reason given'}. Other checkpoints are unchanged."
        ) from error
