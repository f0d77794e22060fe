"""A checkpoint on disk, written and read by Orbax: arrays by name, and a document that describes them.

Orbax writes into a temporary folder and renames it when everything is there, so what has the name of a
checkpoint is complete. Its arrays carry checksums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from replicax.errors import CheckpointError, CheckpointMissingError

__all__ = ["Content", "Store"]

_ARRAYS, _DOCUMENT = "arrays", "document"


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
    """

    def __init__(self, directory: str | os.PathLike[str], max_to_keep: int | None = None) -> None:
        """Nothing is touched before the first save."""
        self.directory = pathlib.Path(directory).absolute()
        self._max_to_keep = max_to_keep

    def steps(self) -> list[int]:
        """The numbers of the complete checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        return sorted(int(name) for name in names if name.isdecimal())

    def path(self, step: int) -> pathlib.Path:
        """Where a checkpoint is."""
        return self.directory / str(step)

    def save(self, step: int, content: Content) -> None:
        """Write a checkpoint, then delete those that are too old. An existing one of that number stays."""
        import orbax.checkpoint as ocp

        with _explained(f"The checkpoint {self.path(step)} could not be written"), _quietly():
            self.directory.mkdir(parents=True, exist_ok=True)
            self._check_room(content)
            with ocp.Checkpointer(_handler()) as checkpointer:
                checkpointer.save(
                    self.path(step),
                    args=ocp.args.Composite(
                        **{
                            _ARRAYS: ocp.args.PyTreeSave(_storable(content.arrays)),
                            _DOCUMENT: ocp.args.JsonSave(content.document),
                        }
                    ),
                )
        self._delete_old(step)

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
            hidden = self.directory / f".deleted-{step}"
            with contextlib.suppress(OSError):
                self.path(step).rename(hidden)
                shutil.rmtree(hidden)

    def clean(self) -> None:
        """Remove what writers that were killed left behind. Nobody else may be writing."""
        if not self.directory.is_dir():
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
        with _explained(f"The checkpoint {path} could not be read"), _quietly():
            with ocp.Checkpointer(_handler()) as checkpointer:
                restored = checkpointer.restore(
                    path,
                    args=ocp.args.Composite(
                        **{_ARRAYS: ocp.args.PyTreeRestore(), _DOCUMENT: ocp.args.JsonRestore()}
                    ),
                )
            document = restored[_DOCUMENT]
            if not isinstance(document, dict) or "entries" not in document:
                raise CheckpointError(
                    f"{path} was not written by rx.Checkpoint: its document is {document!r}."
                )
            return Content(dict(restored[_ARRAYS]), document)


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
    except CheckpointError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        detail = lines[0][:300] if lines else type(error).__name__
        raise CheckpointError(
            f"{what}: {type(error).__name__}: {detail}. Other checkpoints are as they were."
        ) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the pages that Orbax logs about every step of its work."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
