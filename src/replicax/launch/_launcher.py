"""`launch`: runs a program on several workers, and restarts them all when one fails.

An attempt is over when all workers have exited. If one failed and restarts are left, the next attempt
starts all of them again with new ports and contiguous ranks, and the program continues from its checkpoint.
A worker that fails twice in a row is dropped, as far as `min_workers` allows. Users change the number of
workers by writing it to the file `workers` in the log folder.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from replicax.launch._attempt import Attempt, Ending, Failure, Request
from replicax.launch._devices import Devices, divide_devices
from replicax.launch._guard import Guard
from replicax.launch._output import Output
from replicax.launch._requests import Signals, WorkersFile

__all__ = ["LaunchOptions", "launch"]


@final
@dataclass(frozen=True)
class LaunchOptions:
    """What to launch, and how.

    Args:
        command: the command line of every worker.
        num_workers: the number of processes.
        log_dir: an existing folder for the workers' logs and the compilation cache.
        devices_per_worker: None divides all GPUs evenly or, without GPUs, gives each worker one CPU device.
        min_workers: if workers keep failing, continue with as few as this; None requires all of them.
        max_restarts: how often to restart all workers after a failure.
        grace_seconds: how long workers may take to exit after a signal before they are killed.
    """

    command: Sequence[str]
    num_workers: int
    log_dir: Path
    devices_per_worker: int | None = None
    min_workers: int | None = None
    max_restarts: int = 0
    grace_seconds: float = 30.0


def launch(options: LaunchOptions) -> int:
    """Run the program on all workers until it is done, and return the exit status.

    It is 0 if all workers succeeded, otherwise that of the worker that failed first, or 128 + n for signal
    n.

    Raises:
        DeviceError: there are not enough GPUs.
    """
    slots = divide_devices(options.num_workers, options.devices_per_worker, os.environ)
    _say(f"{_count(slots)}; logs in {options.log_dir}")
    if "TF_CONFIG" in os.environ:
        _say("TF_CONFIG is set; the workers get their own instead")
    for rank in range(options.num_workers):
        (options.log_dir / f"worker_{rank}.log").write_bytes(b"")
    with Guard() as guard, Signals(options.grace_seconds) as signals:
        return _Launcher(options, slots, guard, signals).run()


@final
class _Launcher:
    def __init__(
        self, options: LaunchOptions, slots: Sequence[Devices], guard: Guard, signals: Signals
    ) -> None:
        self._options, self._guard, self._signals = options, guard, signals
        self._pool = _WorkerPool(slots, options.min_workers or options.num_workers)
        self._file = WorkersFile(
            options.log_dir / "workers", self._pool.smallest, options.num_workers, _say
        )
        self._num_starts, self._num_failures = 0, 0
        self._wanted: int | None = None  # the number of workers that the user asked for

    def run(self) -> int:
        while True:
            ending = self._attempt()
            if self._signals.received is not None:
                return self._status_after_signal(self._signals.received, ending)
            if self._wanted is not None:
                self._pool.resize(self._wanted)
                self._wanted = None
                _say(f"restarting with {_count(self._pool.devices)}")
            elif ending.failure is None:
                return 0
            elif not self._prepare_restart(ending.failure):
                return ending.failure.exit_status

    def _attempt(self) -> Ending:
        output = Output(self._options.log_dir, sys.stdout, sys.stderr)
        environment = dict(os.environ) | {"REPLICAX_RESTART_COUNT": str(self._num_starts)}
        if self._options.max_restarts > 0 and "JAX_COMPILATION_CACHE_DIR" not in environment:
            environment["JAX_COMPILATION_CACHE_DIR"] = str(self._options.log_dir / "compiled")
            environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # JAX: 1 second
        self._num_starts += 1
        command, devices = self._options.command, self._pool.devices
        return Attempt(self._guard, output, command, devices, environment).watch(self._request)

    def _request(self) -> Request | None:
        if (number := self._file.changed()) is not None and number != len(self._pool.devices):
            self._wanted = number
            return Request(signal.SIGTERM, self._options.grace_seconds)
        return self._signals.next()

    def _status_after_signal(self, number: int, ending: Ending) -> int:
        name, failed = signal.Signals(number).name, next((s for s in ending.statuses if s), 0)
        if failed == 0:
            _say(f"{name}: all workers ended by themselves")
            return 0
        _say(f"{name}: the workers were stopped")
        return failed if failed > 0 else 128 + number

    def _prepare_restart(self, failure: Failure) -> bool:
        """Report the failure; returns whether to restart the workers."""
        self._num_failures += 1
        if self._num_failures > self._options.max_restarts:
            _report(failure, "the others were stopped" if len(self._pool.devices) > 1 else "")
            return False
        if self._pool.record_failure(failure.rank):
            self._file.write(len(self._pool.devices))
        restart = f"restart {self._num_failures} of {self._options.max_restarts}"
        _report(failure, f"{restart} with {_count(self._pool.devices)}")
        return True


@final
@dataclass
class _WorkerPool:
    """Which of the possible workers run, each with its own devices."""

    slots: Sequence[Devices]
    smallest: int
    active: list[int] = field(init=False)
    last_failed: int | None = None

    def __post_init__(self) -> None:
        self.active = list(range(len(self.slots)))

    @property
    def devices(self) -> list[Devices]:
        """The devices of each rank."""
        return [self.slots[slot] for slot in self.active]

    def resize(self, number: int) -> None:
        """Use this many workers; those that run now come first."""
        others = [slot for slot in range(len(self.slots)) if slot not in self.active]
        self.active = sorted([*self.active, *others][:number])
        self.last_failed = None

    def record_failure(self, rank: int) -> bool:
        """Drop a worker that has failed twice in a row, if enough others remain; returns whether it was."""
        slot = self.active[rank]
        is_left_out = slot == self.last_failed and len(self.active) > self.smallest
        self.last_failed = None if is_left_out else slot
        if is_left_out:
            self.active.remove(slot)
        return is_left_out


def _count(devices: Sequence[Devices]) -> str:
    first = devices[0]
    each = len(first.gpus) or first.cpu_devices
    kind = ("GPU" if first.gpus else "CPU device") + ("" if each == 1 else "s")
    workers = "1 worker" if len(devices) == 1 else f"{len(devices)} workers"
    return f"{workers} with {each} {kind}{'' if len(devices) == 1 else ' each'}"


def _report(failure: Failure, what_now: str) -> None:
    _say("; ".join(filter(None, [str(failure), what_now, f"log: {failure.log}"])))
    if failure.traceback:
        print(f"---- worker {failure.rank} ended with:\n{failure.traceback}", file=sys.stderr, flush=True)


def _say(message: str) -> None:
    print(f"replicax launch: {message}", file=sys.stderr, flush=True)
