"""One attempt: start all workers and wait until each has exited, on its own or because another failed."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from replicax.launch._devices import Devices
from replicax.launch._environment import worker_environment
from replicax.launch._guard import Guard
from replicax.launch._output import Output, last_traceback
from replicax.launch._ports import local_addresses
from replicax.launch._process import WorkerProcess, describe_status

__all__ = ["Attempt", "Ending", "Failure", "Request"]

_TICK_SECONDS = 0.02
_SECONDS_TO_LEAVE = 8.0  # how long workers get to notice that another has failed
_SECONDS_TO_TERMINATE = 5.0
_SECONDS_FOR_OUTPUT = 2.0
# The error of a worker that stopped because another had failed; it names the other one.
_CONSEQUENCE = re.compile(r"^replicax\.errors\.Worker(Failed|Lost|Stuck|Left)Error: ")


@final
@dataclass(frozen=True)
class Failure:
    """How a worker failed."""

    rank: int
    status: int
    seconds: float
    traceback: str
    log: str

    def __str__(self) -> str:
        return f"worker {self.rank} {describe_status(self.status)} after {self.seconds:.1f} s"

    @property
    def exit_status(self) -> int:
        """The exit status by the shell's convention: 128 + n for signal n."""
        return self.status if self.status > 0 else 128 - self.status


@final
@dataclass(frozen=True)
class Request:
    """A request to stop all workers: a signal, at once or with time to clean up."""

    number: int
    seconds_to_end: float


@final
@dataclass(frozen=True)
class Ending:
    """How an attempt ended.

    Args:
        failure: the first failure that no other failure had caused; None if there was none.
        statuses: the exit statuses of all workers.
    """

    failure: Failure | None
    statuses: tuple[int, ...]


@final
class Attempt:
    """Starts the workers and watches them until all have exited.

    Args:
        guard: kills the workers if this process dies.
        output: shows what they print.
        command: the command line of every worker.
        devices: the devices of each worker.
        environment: the environment variables that all workers get.
    """

    def __init__(
        self,
        guard: Guard,
        output: Output,
        command: Sequence[str],
        devices: Sequence[Devices],
        environment: Mapping[str, str],
    ) -> None:
        self._output = output
        self._workers: list[WorkerProcess] = []
        self._failed: list[WorkerProcess] = []  # on their own, in the order in which they exited
        self._signals: list[tuple[float, int]] = []  # (when, signal) to send to all workers
        self._is_stopping, self._has_signalled = False, False
        addresses = local_addresses(len(devices))
        for rank, own in enumerate(devices):
            variables = worker_environment(environment, addresses, rank, own)
            worker = WorkerProcess(
                rank, guard, command, variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            self._workers.append(worker)
            output.add(worker)

    def watch(self, next_request: Callable[[], Request | None]) -> Ending:
        """Wait until all workers have exited.

        Args:
            next_request: polled for requests to stop all workers.
        """
        try:
            while self._is_running():
                self._output.show(_TICK_SECONDS)
                self._record_failures()
                if (request := next_request()) is not None:
                    self._stop(request.number, 0.0, request.seconds_to_end)
                self._send_signals()
            self._record_failures()
        finally:
            statuses = [worker.kill() for worker in self._workers]
            self._output.finish(_SECONDS_FOR_OUTPUT)
        return Ending(self._first_failure(), tuple(statuses))

    def _is_running(self) -> bool:
        statuses = [worker.poll() for worker in self._workers]  # poll all: it records when they exited
        return None in statuses

    def _record_failures(self) -> None:
        if self._has_signalled:
            return  # from now on workers exit because of our signals
        for worker in self._workers:
            if worker.poll() and worker not in self._failed:
                self._failed.append(worker)
        if self._failed and not self._is_stopping:
            self._stop(signal.SIGTERM, _SECONDS_TO_LEAVE, _SECONDS_TO_LEAVE + _SECONDS_TO_TERMINATE)

    def _stop(self, number: int, seconds: float, seconds_to_kill: float) -> None:
        now = time.monotonic()
        self._is_stopping = True
        self._signals = [(now + seconds, number), (now + seconds_to_kill, signal.SIGKILL)]

    def _send_signals(self) -> None:
        while self._signals and self._signals[0][0] <= time.monotonic():
            _, number = self._signals.pop(0)
            self._has_signalled = True
            for worker in self._workers:
                worker.kill() if number == signal.SIGKILL else worker.send(number)

    def _first_failure(self) -> Failure | None:
        causes = [worker for worker in self._failed if not self._failed_because_of_another(worker)]
        return next(map(self._describe, causes or self._failed), None)

    def _failed_because_of_another(self, worker: WorkerProcess) -> bool:
        return any(map(_CONSEQUENCE.match, self._output.last_lines(worker.rank)))

    def _describe(self, worker: WorkerProcess) -> Failure:
        status, rank = worker.poll(), worker.rank
        assert status is not None
        traceback = last_traceback(self._output.last_lines(rank))
        return Failure(rank, status, worker.seconds, traceback, str(self._output.log_path(rank)))
