"""Writes TensorBoard event files with tensorboardX, which does not need TensorFlow.

The tracker passes many numbers at once, so we write them directly, without the library's writer threads.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from typing import Any, final

from replicax.tracking._folders import check_folder
from replicax.tracking._processes import on_first_process

__all__ = ["TensorBoardWriter"]

_FLUSH_SECONDS = 5.0
_numbers = itertools.count()


@final
class TensorBoardWriter:
    """Writes numbers to a new file in `folder`, created with the first number."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raise early, before training starts, if the library or the folder can't be used."""
        try:
            import tensorboardX  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise ImportError(
                "rx.Tracker(tensorboard=...) needs tensorboardX, which is not installed: "
                "pip install 'replicax[tensorboard]'."
            ) from error
        self._folder = os.fspath(folder)
        if on_first_process():  # other machines may not have that folder
            check_folder(f"rx.Tracker(tensorboard={self._folder!r})", self._folder)
        self._file: Any = None
        self._next_flush = 0.0

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Write the numbers of one step, which were logged at time `seconds`."""
        # protobuf creates this class at import, so type checkers can't see it.
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        if self._file is None:
            self._file = _new_file(self._folder)
        event = Event(step=step, wall_time=seconds)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._file.write_event(event)

    def flush(self) -> None:
        """Flush the file, at most every few seconds: it waits for the disk."""
        now = time.monotonic()
        if self._file is not None and now >= self._next_flush:
            self._file.flush()
            self._next_flush = now + _FLUSH_SECONDS

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _new_file(folder: str) -> Any:
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.record_writer import directory_check

    directory_check(folder)
    # The library would give two files that are created in the same second the same name.
    return EventsWriter(os.path.join(folder, "events"), f".{os.getpid()}.{next(_numbers)}")
