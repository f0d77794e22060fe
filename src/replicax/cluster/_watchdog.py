"""The watchdog: reports this worker's progress to the hub, and stops the worker when another has failed.

One thread sends a report a few times a second and listens for the hub's messages. It reads the number of
collectives that were started and the main thread's current line, so the training loop does nothing extra.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import threading
import time
from collections.abc import Iterator
from typing import Any, final

from replicax import errors
from replicax.cluster._log import collective_log
from replicax.cluster._options import ClusterOptions
from replicax.cluster._progress import Progress
from replicax.cluster._stacks import all_stacks, is_inside, main_stack, user_line
from replicax.cluster._stopping import Stopper
from replicax.cluster._wire import Connection

__all__ = [
    "PERIOD_SECONDS",
    "Watchdog",
    "await_cause",
    "raise_failure",
    "waiting_for",
    "watch",
    "worker_failure",
]

PERIOD_SECONDS = 0.25
"""Seconds between reports."""

_watchdog: Watchdog | None = None


def watch(connection: Connection, rank: int, options: ClusterOptions) -> None:
    """Start the watchdog of this process, which has this rank."""
    global _watchdog
    _watchdog = Watchdog(connection, rank, options)
    _watchdog.start()


def worker_failure() -> Exception | None:
    """The error that stopped this process's cluster; None while all workers are fine.

    >>> from replicax.cluster import worker_failure
    >>> worker_failure() is None
    True
    """
    return None if _watchdog is None else _watchdog.error


def raise_failure() -> None:
    """Raise another worker's failure in this thread, if there is one."""
    if (error := worker_failure()) is not None:
        raise copy.copy(error)


def await_cause(error: BaseException) -> None:
    """If another worker's failure caused `error`, a communication error in this one, raise that failure.

    When a worker dies, those that communicate with it fail, too, sometimes before they know why. This waits
    up to three seconds to find out. For other errors, and outside a cluster, it returns at once.

    >>> from replicax.cluster import await_cause
    >>> try:
    ...     raise ValueError("Gloo all-reduce failed: connection closed by peer")
    ... except ValueError as error:
    ...     await_cause(error)                  # raises WorkerLostError if another worker has died
    """
    if _watchdog is not None and threading.current_thread() is threading.main_thread():
        _watchdog.await_cause(error)


@contextlib.contextmanager
def waiting_for(process: int, what: str) -> Iterator[None]:
    """A `with` block in which this thread waits for a message from another process."""
    if _watchdog is None:
        yield
        return
    with _watchdog.waiting_for(process, what):
        yield


@final
class Watchdog:
    """Reports to the hub, and stops this process when another one has failed."""

    def __init__(self, connection: Connection, rank: int, options: ClusterOptions) -> None:
        """Take over the connection to the hub."""
        self._connection, self._rank, self._options = connection, rank, options
        self._stopper = Stopper(self._report_failure, options.cleanup_timeout_seconds)
        self._collectives = Progress(collective_log())
        self._waits: dict[threading.Thread, dict[str, Any]] = {}
        self._step_of_error = 0
        self._leaving = False
        self._alone = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replicax_watchdog", daemon=True)

    def start(self) -> None:
        """Start reporting."""
        atexit.register(self._leave)
        self._thread.start()

    @property
    def error(self) -> Exception | None:
        """The failure of another worker."""
        return self._stopper.error

    def await_cause(self, error: BaseException) -> None:
        """See the function of this name."""
        self._stopper.await_cause(error)

    @contextlib.contextmanager
    def waiting_for(self, process: int, what: str) -> Iterator[None]:
        """See the function of this name."""
        thread = threading.current_thread()
        self._waits[thread] = {"rank": process, "what": what}
        try:
            yield
        finally:
            del self._waits[thread]

    # The thread.

    def _run(self) -> None:
        while True:
            self.report_once()
            try:
                messages = self._connection.receive(PERIOD_SECONDS)
            except ValueError:
                messages = None
            if messages is None:
                self._lose_hub()
                return
            for message in messages:
                self._take(message)
            self._check_stopping()

    def report_once(self) -> None:
        """Send the progress of this process to the hub."""
        stack = main_stack()
        message = {
            "kind": "progress",
            "step": collective_log().seq,
            "state": "checkpoint" if is_inside(stack, "checkpoint") else collective_log().state.what,
            "line": user_line(stack),
            "collectives": self._collectives.report(),
            "pending": self._collectives.pending(),
            "waits_for": self._waits_of_program(stack),
        }
        self._connection.send(message)

    def _waits_of_program(self, stack: list[Any]) -> dict[str, Any] | None:
        """The message that the main thread waits for, by itself or through another thread."""
        waits = dict(self._waits)
        main = waits.pop(threading.main_thread(), None)
        if main is None and waits and (is_inside(stack, "input") or is_inside(stack, "checkpoint")):
            return next(iter(waits.values()))
        return main

    def _take(self, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "send stacks":
                self._connection.send({"kind": "stacks", "text": all_stacks()})
            case "verdict":
                self._stop(_error_of(message))
            case "present" if message["ranks"] == [self._rank]:
                self._alone.set()

    def _lose_hub(self) -> None:
        self._alone.set()
        if not self._leaving:
            self._stop(
                errors.WorkerLostError(
                    "Lost the connection to the coordinator, a process on the host of rank 0. That host or "
                    "container has probably stopped. Restart all workers from the last checkpoint."
                )
            )
            self._watch_stopping()

    # Stopping.

    def _stop(self, error: Exception) -> None:
        if self._leaving:
            self._alone.set()
            return
        self._step_of_error = collective_log().seq
        self._stopper.stop(error)

    def _check_stopping(self) -> None:
        if (
            self._stopper.error is not None
            and collective_log().seq > self._step_of_error
            and not self._leaving
        ):
            # The program caught the error and started a collective that can't complete.
            self._step_of_error = collective_log().seq
            self._stopper.interrupt()
        self._stopper.tick()

    def _watch_stopping(self) -> None:
        while True:
            time.sleep(PERIOD_SECONDS)
            self._check_stopping()

    def _report_failure(self, failure: dict[str, Any]) -> None:
        self._connection.send({"kind": "failed", "step": collective_log().seq, **failure})

    def _leave(self) -> None:
        """Report that the program has ended. Rank 0 waits for the others, which need its host."""
        failed = self._stopper.is_failing or self._stopper.error is not None
        if not failed:
            self._leaving = True
            self._connection.send({"kind": "leaving", "step": collective_log().seq})
            if self._rank == 0:
                self._alone.wait(self._options.shutdown_timeout_seconds)


def _error_of(verdict: dict[str, Any]) -> Exception:
    error = getattr(errors, verdict["error"])(verdict["message"])
    error.rank, error.step, error.worker_traceback = (
        verdict["rank"],
        verdict["step"],
        verdict["traceback"],
    )
    return error
