"""Preemption notices: SIGTERM, or what a platform's own function reports.

When a process joins a cluster, JAX installs a SIGTERM handler that swallows the signal, so the program
can no longer be terminated. `leave_sigterm_alone` undoes that: SIGTERM terminates the process unless the
program uses `Notices`, which record the signal instead.

Python runs signal handlers in the main thread, which may be blocked in a compilation or a collective for
minutes. So the thread that waits for notices reads the interpreter's wakeup file descriptor, which gets the
signal at once.
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
    """Restore the SIGTERM handler from before JAX joined a cluster.

    JAX keeps its own if JAX_ENABLE_PREEMPTION_SERVICE=true is set in the environment, for programs that
    call `multihost_utils.reached_preemption_sync_point` themselves.
    """
    asked = os.environ.get("JAX_ENABLE_PREEMPTION_SERVICE", "").lower() in ("1", "true", "yes", "on")
    handler = signal.getsignal(signal.SIGTERM)  # Python's own record, which JAX does not change
    if not asked and handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@final
class Notices:
    """Waits for a preemption notice to this process.

    Args:
        termination_watcher_fn: called once a second; returns whether this process is about to be preempted.
            None waits for SIGTERM.
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
        """Wait up to `seconds` for a notice; returns its reason, or None if there is no notice."""
        if select.select([self._reader], [], [], seconds)[0]:
            received = self._reader.recv(4096)
            if self._signal is not None:
                if bytes([signal.SIGTERM]) in received:
                    self._why = "SIGTERM"
                self._signal.pass_on(received)
        if self._why is None and self._watcher is not None and self._is_notified():
            self._why = f"{getattr(self._watcher, '__name__', 'termination_watcher_fn')} returned True"
        return self._why

    def _is_notified(self) -> bool:
        now = time.monotonic()
        if self._watcher is None or now - self._asked < 1:
            return False
        self._asked = now
        return bool(self._watcher())

    def wake(self) -> None:
        """Wake up a `wait` in another thread."""
        self._writer.send(b"\0")

    def forget(self) -> None:
        """Forget the notice, to wait for the next one."""
        self._why = None

    def close(self, *, at_exit: bool = False) -> None:
        """Restore the previous handler; `at_exit` says that the program is exiting anyway."""
        if self._signal is None or self._signal.close(at_exit=at_exit):
            self._reader.close()
            self._writer.close()


@final
class _Signal:
    """Our SIGTERM handler. It passes the signal on to other instances and to event loops.

    It does not call other earlier handlers, because most of them would exit.
    """

    def __init__(self, receive: Callable[[], None], file: socket.socket) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "SIGTERM can be handled only in the main thread of a program. Create the handler there, or "
                "pass TerminationConfig(termination_watcher_fn=...), which works in any thread."
            )
        self._receive = receive
        self._handler = self._handle  # one bound method, so that `is` recognises it
        self._file = file.fileno()
        self._previous = signal.signal(signal.SIGTERM, self._handler)
        self._previous_file = signal.set_wakeup_fd(self._file, warn_on_full_buffer=False)

    def _handle(self, number: int, frame: Any) -> None:
        self._receive()
        before = getattr(self._previous, "__self__", None)
        if isinstance(before, _Signal):
            before._handle(number, frame)

    def pass_on(self, received: bytes) -> None:
        """Forward the wakeup bytes to the previous reader."""
        if self._previous_file >= 0:
            with contextlib.suppress(OSError):
                os.write(self._previous_file, received)

    def close(self, *, at_exit: bool) -> bool:
        """Restore the previous handler; False if another handler still forwards signals to this one.

        At exit the signal stays ignored: a program that has finished its work must not look as if it
        failed.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) is not self._handler:
            return False
        signal.set_wakeup_fd(self._previous_file)
        kills = self._previous is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN if at_exit and kills else self._previous)
        return True
