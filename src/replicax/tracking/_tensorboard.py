"""Numbers in TensorBoard's files, by tensorboardX, which needs no TensorFlow.

The tracker hands over many numbers at once, so they are written at once, without the library's threads.
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
    """Writes numbers into a new file in `folder`, which is made when there is something to write."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises what is known before training begins: no library, or no folder to write in."""
        try:
            import tensorboardX  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise ImportError(
                "rx.Tracker(tensorboard=...) writes by tensorboardX, which is not installed: "
                "pip install 'replicax[tensorboard]'."
            ) from error
        self._folder = os.fspath(folder)
        if on_first_process():  # the others may be on machines without that folder
            check_folder(f"rx.Tracker(tensorboard={self._folder!r})", self._folder)
        self._file: Any = None
        self._next_flush = 0.0

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Write the numbers of one step, which were logged at the time `seconds`."""
        # A class that protobuf makes when it is imported.
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        if self._file is None:
            self._file = _new_file(self._folder)
        event = Event(step=step, wall_time=seconds)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._file.write_event(event)

    def flush(self) -> None:
        """Let TensorBoard see what was written, if it could not for a while: that waits for the disk."""
        now = time.monotonic()
        if self._file is not None and now >= self._next_flush:
            self._file.flush()
            self._next_flush = now + _FLUSH_SECONDS

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _new_file(folder: str) -> Any:
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.record_writer import directory_check

    directory_check(folder)
    # By itself, the library gives two files of one second the same name.
    return EventsWriter(os.path.join(folder, "events"), f".{os.getpid()}.{next(_numbers)}")
