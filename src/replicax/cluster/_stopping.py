"""Stops this process when it or another worker has failed.

When another worker has failed, its error is raised in the main thread, so that the program's `except` and
`finally` blocks run. A real signal raises it, which also interrupts `time.sleep` and other waits. If the
main thread is blocked in native code, usually in a collective that the failed worker will never join, it
can't raise. Then, after a second, the error is printed and the process exits with `BLOCKED_STATUS`.

When this program itself fails, an exception hook reports it. Some failures are only consequences: when a
worker dies, those connected to it fail, too. They wait a moment to learn the cause, and print it last.
Aborts in native code are handled the same way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, final

import jax

from replicax.cluster._aborts import before_abort
from replicax.cluster._stacks import all_stacks

__all__ = ["BLOCKED_STATUS", "Stopper"]

BLOCKED_STATUS = 70
"""The exit status of a worker that was blocked in native code when another worker failed."""

_SIGNAL = signal.SIGURG  # ignored by default, and rarely used
_RAISE_SECONDS = 1.0
_CAUSE_SECONDS = 3.0
_FLUSH_SECONDS = 0.5
_LIBRARIES = ("Gloo", "NCCL")  # JAX raises some of their errors as ValueError


@final
class Stopper:
    """Stops this process when a worker has failed; create it in the main thread."""

    def __init__(self, report: Callable[[dict[str, Any]], None], cleanup_seconds: float) -> None:
        """Call `report` for an exception that ends the program."""
        self._report, self._cleanup_seconds = report, cleanup_seconds
        self._error: Exception | None = None
        self._known, self._raised = threading.Event(), threading.Event()
        self._end_at: float | None = None
        self.is_failing = False
        """Whether this program is ending with an exception of its own."""
        self._previous_hook = sys.excepthook
        self._can_raise = threading.current_thread() is threading.main_thread()
        if self._can_raise:
            self._previous_handler = signal.signal(_SIGNAL, self._handle)
        sys.excepthook = self._hook
        before_abort(self._abort)

    @property
    def error(self) -> Exception | None:
        """The failure of another worker."""
        return self._error

    # Another worker has failed.

    def stop(self, error: Exception) -> None:
        """Raise `error` in the main thread; called from the watchdog's thread."""
        self._error = error
        self._known.set()
        if not self.is_failing:
            self._end_at = time.monotonic() + self._cleanup_seconds
            self.interrupt()

    def interrupt(self) -> None:
        """Raise the error in the main thread, or exit if that is blocked."""
        self._raised.clear()
        if self._can_raise:
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        if not self._raised.wait(_RAISE_SECONDS) and not self.is_failing:
            self._end(BLOCKED_STATUS)

    def await_cause(self, error: BaseException) -> None:
        """If another worker's failure may have caused `error`, wait a moment for it: it is raised here."""
        if not self.is_failing and _may_be_caused_by_another(error):
            self._known.wait(_CAUSE_SECONDS)  # the signal from `interrupt` ends the wait

    def tick(self) -> None:
        """Exit if the program takes too long to stop; called periodically from the watchdog's thread."""
        if self._end_at is not None and time.monotonic() > self._end_at:
            self._end(1)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._error is not None and not self.is_failing:
            self._raised.set()
            raise self._error
        if callable(self._previous_handler):
            self._previous_handler(number, frame)

    def _end(self, status: int) -> None:
        """Print the error and exit, whatever the main thread is doing."""
        text = traceback.format_exception_only(self._error) if self._error is not None else []
        flushing = threading.Thread(target=_flush, daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)  # the main thread may hold a file's lock
        os.write(2, _with_banner("".join(text)).encode(errors="replace"))
        os._exit(status)

    # This program has failed.

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._error is not None and _is_caused_by(error, self._error):
            self._previous_hook(kind, error, trace)
            return
        by_another = _may_be_caused_by_another(error)
        self.is_failing = True
        self._end_at = time.monotonic() + self._cleanup_seconds
        text = "".join(traceback.format_exception(kind, error, trace))
        self._report(
            {"type": kind.__name__, "message": str(error), "traceback": text, "by_another": by_another}
        )
        self._previous_hook(kind, error, trace)
        if by_another and self._known.wait(_CAUSE_SECONDS) and self._error is not None:
            print(
                _with_banner("".join(traceback.format_exception_only(self._error))),
                file=sys.stderr,
                flush=True,
            )

    def _abort(self) -> None:
        """Native code is aborting: wait for the cause, which `stop` raises or prints in another thread."""
        message = "native code has aborted the process; its output says why"
        self._report({"type": "SIGABRT", "message": message, "traceback": all_stacks(), "by_another": True})
        if self._known.wait(_CAUSE_SECONDS):
            time.sleep(self._cleanup_seconds)


def _flush() -> None:
    for file in (sys.stdout, sys.stderr):
        if file is not None:
            file.flush()


def _with_banner(text: str) -> str:
    return f"\n==== Replicax: a worker has failed ====\n{text.rstrip()}\n"


def _is_caused_by(error: BaseException | None, cause: BaseException) -> bool:
    while error is not None and error is not cause:
        error = error.__cause__ or error.__context__
    return error is cause


def _may_be_caused_by_another(error: BaseException) -> bool:
    """Whether a lost connection to another worker may have caused the error."""
    if isinstance(error, jax.errors.JaxRuntimeError | ConnectionError | TimeoutError):
        return True
    return isinstance(error, Exception) and any(name in str(error) for name in _LIBRARIES)
