"""Notices that a process will be ended soon: SIGTERM, or a platform's own signal.

When processes join a cluster, JAX installs a handler for SIGTERM that does nothing, so a program that is
told to end continues. `leave_sigterm_alone` undoes that: SIGTERM ends a process unless the program uses
`Notices`, which remember the notice instead.

A Python signal handler waits for the main thread to return to Python, which may be blocked in a compilation
or a collective for minutes. So the thread that waits for notices learns of the signal from a file that the
interpreter writes to immediately.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, final

__all__ = ["Notices", "leave_sigterm_alone"]


def leave_sigterm_alone() -> None:
    """Restore the handling of SIGTERM from before JAX joined a cluster.

    JAX keeps the signal if the environment says JAX_ENABLE_PREEMPTION_SERVICE=true, for programs that call
    `multihost_utils.reached_preemption_sync_point` themselves.
    """
    asked = os.environ.get("JAX_ENABLE_PREEMPTION_SERVICE", "").lower() in ("1", "true", "yes", "on")
    handler = signal.getsignal(signal.SIGTERM)  # Python's own record, which JAX does not change
    if not asked and handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@final
class Notices:
    """Waits for a notice to this process.

    Args:
        termination_watcher_fn: called once a second; returns whether this process will be ended. None waits
            for SIGTERM.
    """

    def __init__(self, termination_watcher_fn: Callable[[], bool] | None) -> None:
        self._watcher = termination_watcher_fn
        self._asked = 0.0
        self._why: str | None = None
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._signal = _Signal(self._receive, self._writer) if termination_watcher_fn is None else None

    def _receive(self) -> None:
        self._why = "SIGTERM"

    def wait(self, seconds: float) -> str | None:
        """Why this process will be ended, if a notice comes within `seconds` or has come; else None."""
        if select.select([self._reader], [], [], seconds)[0]:
            received = self._reader.recv(4096)
            if self._signal is not None:
                if bytes([signal.SIGTERM]) in received:
                    self._why = "SIGTERM"
                self._signal.pass_on(received)
        if self._why is None and self._watcher is not None and self._is_told():
            self._why = f"{getattr(self._watcher, '__name__', 'termination_watcher_fn')} returned True"
        return self._why

    def _is_told(self) -> bool:
        now = time.monotonic()
        if self._watcher is None or now - self._asked < 1:
            return False
        self._asked = now
        return bool(self._watcher())

    def wake(self) -> None:
        """End a `wait` in another thread."""
        self._writer.send(b"\0")

    def forget(self) -> None:
        """Wait for the next notice."""
        self._why = None

    def close(self, *, at_exit: bool = False) -> None:
        """Restore the previous handler; `at_exit` means that the program is ending anyway."""
        if self._signal is None or self._signal.close(at_exit=at_exit):
            self._reader.close()
            self._writer.close()


@final
class _Signal:
    """Our handler of SIGTERM. It passes the signal on to other instances and to event loops.

    It does not call other previous handlers, since most would end the program.
    """

    def __init__(self, receive: Callable[[], None], file: socket.socket) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "SIGTERM can be handled only in the main thread of a program. Make the handler there, or "
                "pass TerminationConfig(termination_watcher_fn=...), which any thread may use."
            )
        self._receive = receive
        self._handler = self._handle  # one object, to recognise it
        self._file = file.fileno()
        self._previous = signal.signal(signal.SIGTERM, self._handler)
        self._previous_file = signal.set_wakeup_fd(self._file, warn_on_full_buffer=False)

    def _handle(self, number: int, frame: Any) -> None:
        self._receive()
        before = getattr(self._previous, "__self__", None)
        if isinstance(before, _Signal):
            before._handle(number, frame)

    def pass_on(self, received: bytes) -> None:
        """Pass what the interpreter wrote on to the previous reader."""
        if self._previous_file >= 0:
            with contextlib.suppress(OSError):
                os.write(self._previous_file, received)

    def close(self, *, at_exit: bool) -> bool:
        """Restore the previous handler; False if another handler still passes signals on to this one.

        A program that has finished its work, and is ending, must not be killed by the signal: it would look
        as if it had failed.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) is not self._handler:
            return False
        signal.set_wakeup_fd(self._previous_file)
        kills = self._previous is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN if at_exit and kills else self._previous)
        return True
