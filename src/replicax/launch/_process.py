"""One worker's process: its status, and signals to it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import IO, final

from replicax.launch._guard import Guard

__all__ = ["WorkerProcess", "describe_status"]


@final
class WorkerProcess:
    """A running worker, the leader of its own process group.

    Processes that it started, such as the coordinator, may outlive it until `kill`.

    Args:
        rank: the worker's rank.
        guard: kills the worker if this process dies.
        command: the program and its arguments.
        environment: all environment variables of the worker.
        stdout: where the worker's stdout goes, as for `subprocess.Popen`.
        stderr: where its stderr goes.
    """

    def __init__(
        self,
        rank: int,
        guard: Guard,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
    ) -> None:
        self.rank = rank
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self._guard, self._forgotten = guard, False
        self._process = guard.start(command, environment, stdout, stderr)

    @property
    def pid(self) -> int:
        """The id of the process, and of its process group."""
        return self._process.pid

    @property
    def stdout(self) -> IO[bytes] | None:
        """The read end of the worker's stdout, if it is a pipe."""
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """The read end of the worker's stderr, if it is a pipe."""
        return self._process.stderr

    @property
    def seconds(self) -> float:
        """How long the worker has been running, or ran."""
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while the worker runs."""
        if self.ended_at is None and self._process.poll() is not None:
            self.ended_at = time.monotonic()
        if self.ended_at is not None and not self._signal_group(0):
            self._forget()
        return self._process.returncode

    def send(self, number: int) -> None:
        """Send a signal to the worker's process, unless it has exited."""
        if self.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> int:
        """Kill the worker and any processes that it left behind; returns its exit status."""
        self.poll()
        self._signal_group(signal.SIGKILL)
        status = self._process.wait()
        self.poll()
        self._forget()
        return status

    def _signal_group(self, number: int) -> bool:
        """Send a signal to the group; returns whether any process of it was left."""
        if self._forgotten:
            return False
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS: all are zombies
            return False
        return True

    def _forget(self) -> None:
        """Never signal the group again: it is gone, and its id may be reused."""
        if not self._forgotten:
            self._forgotten = True
            self._guard.forget(self.pid)


def describe_status(status: int) -> str:
    """How a process ended, in words.

    >>> from replicax.launch import describe_status
    >>> describe_status(3)
    'failed with exit status 3'
    >>> describe_status(-9)
    'was killed by SIGKILL'
    """
    if status == 0:
        return "succeeded"
    if status > 0:
        return f"failed with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
