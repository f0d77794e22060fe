"""A group of workers that run the same function."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, final

from replicax.launch import Devices, Guard, WorkerProcess, local_addresses, worker_environment
from replicax.testing._files import Files
from replicax.testing._job import Job
from replicax.testing._outcome import Outcome, read_report

__all__ = ["Workers"]

# The worker gets this process's `sys.path`.
_PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from replicax.testing._worker import main
main()
"""
_POLL_SECONDS = 0.02
_SECONDS_TO_PRINT_STACKS = 2.0


@final
class Workers:
    """Running workers, returned by `start`. Leaving the `with` block kills those that still run.

    >>> from replicax import testing
    >>> with testing.start(testing.point, ("here",), num_workers=1) as workers:
    ...     workers.wait_for("here", rank=0)
    ...     [outcome] = workers.wait()
    >>> outcome.failed, outcome.points
    (False, ['here'])
    """

    def __init__(
        self,
        job: Job,
        num_workers: int,
        devices_per_worker: int,
        environment: Mapping[str, str],
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="replicax-testing-", ignore_cleanup_errors=True)
        self._files = [Files(Path(self._folder.name), rank) for rank in range(num_workers)]
        self._guard = Guard()
        self._outcomes: dict[int, Outcome] = {}
        self._processes: list[WorkerProcess] = []
        self._files[0].job.write_bytes(pickle.dumps(job))
        try:
            self._start_processes(devices_per_worker, environment)
        except BaseException:
            self.close()
            raise

    def _start_processes(self, devices_per_worker: int, environment: Mapping[str, str]) -> None:
        addresses = local_addresses(len(self._files))
        inherited = dict(os.environ) | {"JAX_PLATFORMS": "cpu"}
        for files in self._files:
            own = worker_environment(inherited, addresses, files.rank, Devices((), devices_per_worker))
            command = [
                sys.executable,
                "-c",
                _PROGRAM,
                json.dumps(sys.path),
                str(files.folder),
                str(files.rank),
            ]
            with files.output.open("wb") as output:
                process = WorkerProcess(
                    files.rank, self._guard, command, own | dict(environment), stdout=output, stderr=output
                )
            self._processes.append(process)

    def __len__(self) -> int:
        return len(self._processes)

    def is_running(self, rank: int) -> bool:
        """Whether the worker's process exists, even if it is stopped."""
        return self._process(rank).poll() is None

    def output(self, rank: int) -> str:
        """What the worker has written to stdout and stderr so far."""
        self._process(rank)
        return self._files[rank].read_output()

    def send(self, rank: int, number: int) -> None:
        """Send the worker a signal, such as `signal.SIGTERM`; does nothing if it has exited."""
        self._process(rank).send(number)

    def kill(self, rank: int) -> None:
        """Kill the worker with SIGKILL, so that it can't clean up."""
        self.send(rank, signal.SIGKILL)

    def stop(self, rank: int) -> None:
        """Stop the worker with SIGSTOP: the process exists, but does not run."""
        self.send(rank, signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        """Let a stopped worker continue."""
        self.send(rank, signal.SIGCONT)

    def wait_for(self, point: str, rank: int, timeout_seconds: float = 120.0) -> None:
        """Wait until the worker has reached the point.

        Args:
            point: a name that the worker's function passes to `point`.
            rank: the worker.
            timeout_seconds: how long to wait.

        Raises:
            TimeoutError: it did not get there in time.
            RuntimeError: it exited before that.
        """
        process, files = self._process(rank), self._files[rank]
        deadline = time.monotonic() + timeout_seconds
        while point not in files.read_points():
            ended = process.poll() is not None
            if ended and point not in files.read_points():
                raise RuntimeError(
                    f"Rank {rank} ended before the point {point!r}; it reached {files.read_points()} and "
                    f"printed:\n{files.read_output()}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Rank {rank} did not reach the point {point!r} within {timeout_seconds:g} s; it "
                    f"reached {files.read_points()} and printed:\n{files.read_output()}"
                )
            time.sleep(_POLL_SECONDS)

    def wait(self, timeout_seconds: float = 240.0, grace_seconds: float | None = None) -> list[Outcome]:
        """Wait until all workers have exited, and kill those that have not by the timeout.

        A worker that is killed because of the timeout first prints the Python stacks of its threads.

        Args:
            timeout_seconds: how long to wait for all.
            grace_seconds: how long to wait for the others after one has failed; None waits until the
                timeout.

        Returns:
            The outcome of each worker, in rank order.
        """
        deadline = time.monotonic() + timeout_seconds
        failed_by = None
        while running := [process for process in self._processes if process.poll() is None]:
            now = time.monotonic()
            if failed_by is None and any(process.poll() for process in self._processes):
                failed_by = now
            if failed_by is not None and grace_seconds is not None and now > failed_by + grace_seconds:
                deadline = now
            if now >= deadline:
                self._print_stacks(running)
                break
            time.sleep(_POLL_SECONDS)
        return [self._outcome(process, process in running) for process in self._processes]

    def _print_stacks(self, processes: Sequence[WorkerProcess]) -> None:
        for process in processes:
            process.send(signal.SIGABRT)
        deadline = time.monotonic() + _SECONDS_TO_PRINT_STACKS
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _outcome(self, process: WorkerProcess, stopped: bool) -> Outcome:
        rank = process.rank
        if rank not in self._outcomes:
            status, files = process.kill(), self._files[rank]
            report = read_report(files.report)
            self._outcomes[rank] = Outcome(
                rank,
                status,
                report.value,
                report.error,
                report.traceback,
                output=files.read_output(),
                points=files.read_points(),
                seconds=process.seconds,
                stopped=stopped,
            )
        return self._outcomes[rank]

    def _process(self, rank: int) -> WorkerProcess:
        if not 0 <= rank < len(self._processes):
            raise IndexError(f"Rank {rank} does not exist; the ranks are 0 to {len(self._processes) - 1}.")
        return self._processes[rank]

    def close(self) -> None:
        """Kill the workers that still run, and remove their files."""
        for process in self._processes:
            process.kill()
        self._guard.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
