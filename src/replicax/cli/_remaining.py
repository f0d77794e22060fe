"""An estimate of the remaining time, and a status line that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, final

__all__ = ["RemainingTime", "StatusLine", "duration"]


def duration(seconds: float) -> str:
    """A duration as text, rounded.

    >>> from replicax.cli._remaining import duration
    >>> duration(3.4), duration(95), duration(7300)
    ('3 s', '2 min', '2 h 2 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@final
class RemainingTime:
    """Estimates the remaining time from the progress since the first call.

    Args:
        total: how much there is to do.
        clock: returns the time in seconds.

    >>> from replicax.cli._remaining import RemainingTime
    >>> times = iter([0.0, 10.0])
    >>> remaining = RemainingTime(20, clock=lambda: next(times))
    >>> remaining(0), remaining(5)
    ('', 'about 30 s left')
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._start: tuple[float, int] | None = None

    def __call__(self, done: int) -> str:
        """The remaining time, as text; empty until there is an estimate."""
        now = self._clock()
        if self._start is None:
            self._start = now, done
        since, before = self._start
        if done <= before or done >= self._total:
            return ""
        return f"about {duration((now - since) / (done - before) * (self._total - done))} left"


@final
class StatusLine:
    """A line that is overwritten; does nothing unless the stream is a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._is_terminal = stream, stream.isatty()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._is_terminal:
            self._stream.write(f"\r\033[K{text}")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line, before something else is printed."""
        self.show("")
