"""How stale gradients may be: which functions may run at the same time."""

from __future__ import annotations

from typing import Any, final

__all__ = ["StalenessLimit"]


@final
class StalenessLimit:
    """Starts a function only if neither it nor a running one can miss more than `most` others.

    A function misses the updates of those that end while it runs, because it has already fetched its
    variables. So it misses the ones that have ended since it started and, at worst, all that still run.

    Args:
        most: how many a function may miss; None for any number, 0 for one function after the other.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._num_ended = 0
        self._started: dict[Any, int] = {}

    def may_start(self) -> bool:
        """Whether one more function may start now."""
        if self._most is None:
            return True
        running = len(self._started)
        oldest = min(self._started.values(), default=self._num_ended)
        return self._num_ended - oldest + running <= self._most

    def start(self, call: Any) -> None:
        """A function starts."""
        self._started[call] = self._num_ended

    def end(self, call: Any) -> None:
        """A function has ended, successfully or not: it may have made its update."""
        del self._started[call]
        self._num_ended += 1
