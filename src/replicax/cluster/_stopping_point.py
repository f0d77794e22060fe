"""Agrees on the step at which all processes stop when one is about to be preempted.

Every program passes the same sequence of points, usually the ends of its steps. A process that gets a
notice publishes it. A thread in each process sees the notice and reports how many points its program has
passed; from then on the program waits at its next point until all have reported. All stop at the first
point that no program has passed. A program waits only for the reporting threads, never for another program,
so it does not matter if others are blocked in a collective or a compilation: those that are behind run on
to the point.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, final

import jax

from replicax.cluster._messages import all_published, publish
from replicax.cluster._notices import Notices
from replicax.errors import CollectiveTimeoutError

__all__ = ["TOPIC", "StoppingPoint"]

_PERIOD_SECONDS = 0.2
_TIMEOUT_SECONDS = 60.0
TOPIC = "replicax/preemption"


@final
class StoppingPoint:
    """Watches for notices to any process, and finds the point at which all stop.

    Args:
        termination_watcher_fn: see `Notices`.
        delay: given the seconds since this process got its notice, returns how many more to wait before it
            tells the others.

    >>> from replicax.cluster import StoppingPoint
    >>> point = StoppingPoint(lambda: True, delay=lambda seconds: 0.0)
    >>> while not point.reached():
    ...     pass  # a step
    >>> point.message
    'Process 0 will be ended (<lambda> returned True)'
    >>> point.close()
    """

    def __init__(
        self, termination_watcher_fn: Callable[[], bool] | None, delay: Callable[[float], float]
    ) -> None:
        self._notices, self._delay = Notices(termination_watcher_fn), delay
        self._process, self._num_processes = jax.process_index(), jax.process_count()
        self._lock = threading.Lock()
        self._passed = self._generation = 0
        self._told: int | None = None  # how many points this program had passed when the notice was seen
        self._where: int | None = None
        self._decided = threading.Event()
        self._closed = False
        self._error: BaseException | None = None
        self.message: str | None = None
        """Which process got a notice, and why; None until one does."""
        self._thread = threading.Thread(target=self._watch, name="replicax_preemption", daemon=True)
        self._thread.start()
        atexit.register(self._close, at_exit=True)

    def reached(self) -> bool:
        """Pass a point; returns whether all processes stop here."""
        with self._lock:
            if self._told is None:
                self._passed += 1
                return False
        if not self._decided.wait(_TIMEOUT_SECONDS):
            raise CollectiveTimeoutError(
                f"Process {self._process} timed out after {_TIMEOUT_SECONDS:g} s agreeing with the others "
                f"on where to stop. {self.message}. Check that all of them are still running."
            )
        if self._error is not None:
            raise self._error
        with self._lock:
            assert self._where is not None
            if self._passed >= self._where:
                return True
            self._passed += 1
            return False

    def resume(self) -> None:
        """Continue after a stop; another notice may come later."""
        with self._lock:
            self._generation += 1
            self._told = self._where = self.message = None
            self._notices.forget()
            self._decided.clear()

    def close(self) -> None:
        """Stop watching, and tell the others not to wait for this process."""
        self._close(at_exit=False)

    def _close(self, *, at_exit: bool) -> None:
        if self._closed:
            return
        atexit.unregister(self._close)
        self._closed = True
        self._notices.wake()
        self._thread.join()
        with contextlib.suppress(Exception):  # the coordinator may have ended
            self._tell("points", self._passed)
        self._notices.close(at_exit=at_exit)

    # In the thread.

    def _watch(self) -> None:
        try:
            since: float | None = None
            while not self._closed:
                why = self._notices.wait(_PERIOD_SECONDS)
                since = None if why is None else (since or time.monotonic())
                if self._told is None:
                    self._look(why, since)
                elif self._where is None:
                    self._decide()
        except BaseException as error:  # raised at the next point
            self._error = error
            self._told = self._told or 0
            self._decided.set()

    def _look(self, why: str | None, since: float | None) -> None:
        """Look for a notice to any process; if there is one, report how many points were passed."""
        message = next(iter(self._read("notice").values()), None)
        if message is None and why is not None and self._delay(time.monotonic() - (since or 0)) <= 0:
            message = f"Process {self._process} will be ended ({why})"
            self._tell("notice", message)
        if message is not None:
            with self._lock:
                self.message, self._told = message, self._passed
            self._tell("points", self._told)
            self._decide()

    def _decide(self) -> None:
        points = {**self._read("points"), self._process: self._told}
        if len(points) == self._num_processes:
            self._where = max(points.values())
            self._decided.set()

    def _tell(self, what: str, message: Any) -> None:
        if self._num_processes > 1:
            publish(f"{TOPIC}/{self._generation}/{what}", message)

    def _read(self, what: str) -> dict[int, Any]:
        """What the processes have published, by process."""
        return all_published(f"{TOPIC}/{self._generation}/{what}") if self._num_processes > 1 else {}
