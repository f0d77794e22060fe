"""Requests to the launcher while workers run: signals, and the file with the number of workers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self, final

from replicax.launch._attempt import Request

__all__ = ["Signals", "WorkersFile"]

_FORWARDED = {signal.SIGINT: signal.SIGINT, signal.SIGTERM: signal.SIGTERM, signal.SIGHUP: signal.SIGTERM}
_SECONDS_BETWEEN_READS = 0.5


@final
class Signals:
    """Turns SIGINT, SIGTERM and SIGHUP into requests to stop the workers. A second SIGINT kills them.

    Args:
        grace_seconds: how long the workers may take to exit.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._arrived: list[int] = []
        self._previous: dict[int, Any] = {}
        self.received: int | None = None
        """The first signal that was passed on."""

    def next(self) -> Request | None:
        """The request for the next signal; None if there was no signal."""
        if not self._arrived:
            return None
        number = _FORWARDED[signal.Signals(self._arrived.pop(0))]
        if self.received is None:
            self.received = number
            return Request(number, self._grace_seconds)
        return Request(signal.SIGKILL, 0.0) if number == signal.SIGINT else None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)

    def __enter__(self) -> Self:
        for number in _FORWARDED:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


@final
class WorkersFile:
    """A file with the number of workers, which the user may change: `echo 2 > logs/workers`.

    Args:
        path: the file.
        smallest: the smallest number that is accepted.
        largest: the largest.
        complain: called with a message if the file is invalid.
    """

    def __init__(self, path: Path, smallest: int, largest: int, complain: Callable[[str], None]) -> None:
        self._path, self._smallest, self._largest, self._complain = path, smallest, largest, complain
        self._next_read = 0.0
        self._seen = ""
        self.write(largest)

    def write(self, number: int) -> None:
        """Write the current number, for the user to see."""
        self._seen = str(number)
        self._path.write_text(f"{number}\n")

    def changed(self) -> int | None:
        """The number that the user has written since the last call; None if the file is unchanged."""
        if time.monotonic() < self._next_read:
            return None
        self._next_read = time.monotonic() + _SECONDS_BETWEEN_READS
        text = self._path.read_text().strip() if self._path.exists() else self._seen
        if text in (self._seen, ""):  # empty: the user's write is in progress
            return None
        self._seen = text
        if text.isdecimal() and self._smallest <= int(text) <= self._largest:
            return int(text)
        self._complain(
            f"{self._path} has {text!r}, which is not a number of workers from {self._smallest} "
            f"(--min-workers) to {self._largest} (--workers); the workers continue"
        )
        return None
