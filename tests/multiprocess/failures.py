"""How long it takes until every worker has stopped and named the one that failed.

    python -m tests.multiprocess.failures
    python -m tests.multiprocess.failures --workers 2 --kinds kill raise --moments step --seconds 10
    python -m tests.multiprocess.failures --moments step --peers PYTHON

The table has one line for each kind of failure and moment, one column for each number of workers and rank
that fails. A figure is the time from the failure to the end of the last worker; `!` follows it if a
worker has not named the one that failed, or a process was left behind, and `late` if the target was
missed. `--peers` adds PyTorch's DistributedDataParallel under torchrun, for failures in a step, with a
Python that has torch; a figure is the time until torchrun ends.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from tests.multiprocess.failing import FAULT, KINDS, MOMENTS, train

from replicax import testing

_GROUP = "REPLICAX_TEST_GROUP"
_LIMIT_SECONDS = 240.0


@dataclasses.dataclass
class Result:
    """What became of the workers after one of them had failed."""

    kind: str
    rank: int
    moment: str
    seconds: float
    """From the failure to the end of the last worker, except one that is stopped."""
    outputs: list[str]
    statuses: list[int | None]
    left_behind: list[str]

    @property
    def others(self):
        """The ranks that did not fail by themselves."""
        return [rank for rank in range(len(self.outputs)) if rank != self.rank]

    @property
    def is_named(self):
        """Whether all others have said who failed; those that had done their work may end well."""
        name = f"worker {self.rank} (" if self.moment == "start" else f"rank {self.rank} ("
        return all(
            name in last_error(self.outputs[rank])
            or (self.moment == "shutdown" and self.statuses[rank] == 0)
            for rank in self.others
        )

    def target(self, limit):
        """How long it may take if the limit for waiting is this."""
        if self.moment == "start" or self.kind in ("stop", "sleep"):
            return limit + 5.0
        return 5.0 if self.kind in ("kill", "abort") else 2.0


def last_error(output):
    """The last error of Replicax in what a worker has printed, with its message."""
    return output[output.rfind("replicax.errors.") :] if "replicax.errors." in output else ""


def measure(kind, rank, moment, num_workers, limit):
    """Let one worker fail, and see what becomes of all."""
    group = uuid.uuid4().hex
    with (
        tempfile.TemporaryDirectory() as folder,
        testing.start(
            train, (kind, rank, moment, limit, folder), num_workers=num_workers, environment={_GROUP: group}
        ) as workers,
    ):
        # One that is stopped, or sleeps while nobody needs it, does not end.
        stays = kind == "stop" or (kind == "sleep" and moment in ("start", "shutdown"))
        ends = _wait(workers, num_workers, num_workers - stays)
        outputs = [workers.output(i) for i in range(num_workers)]
        left_behind = [] if stays else _processes_of(group, patience=3.0)
        statuses = [outcome.status for outcome in workers.wait(0.0)]
    seconds = max(ends.values(), default=float("inf")) - _time_of_fault(outputs[rank])
    return Result(kind, rank, moment, seconds, outputs, statuses, left_behind)


def measure_torch(python, kind, rank, num_workers, limit):
    """The seconds from the failure of a worker of PyTorch to the end of torchrun."""
    program = Path(__file__).parents[2] / "benchmarks" / "failing_torch.py"
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_workers)]
    process = subprocess.Popen(
        [*command, str(program), kind, str(rank), str(limit)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    try:
        output, _ = process.communicate(timeout=_LIMIT_SECONDS)
        return time.time() - _time_of_fault(output)
    except subprocess.TimeoutExpired:
        return float("inf")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _wait(workers, num_workers, num_ends):
    """When each worker ended; waits until `num_ends` of them have."""
    ends, deadline = {}, time.monotonic() + _LIMIT_SECONDS
    while len(ends) < num_ends and time.monotonic() < deadline:
        for rank in set(range(num_workers)) - ends.keys():
            if not workers.is_running(rank):
                ends[rank] = time.time()
        time.sleep(0.02)
    return ends if len(ends) >= num_ends else {**ends, -1: float("inf")}


def _time_of_fault(output):
    lines = [line for line in output.splitlines() if line.startswith(FAULT)]
    return float(lines[0].removeprefix(FAULT)) if lines else float("nan")


def _processes_of(group, patience):
    """The command lines of processes of the group that have not ended after some time."""
    deadline = time.monotonic() + patience
    while found := [line for path in Path("/proc").glob("[0-9]*") if (line := _command_of(path, group))]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return found


def _command_of(path, group):
    try:
        if f"{_GROUP}={group}".encode() in (path / "environ").read_bytes():
            return (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:  # it has ended, or is not ours
        pass
    return ""


def _cell(result, limit):
    marks = "" if result.is_named and not result.left_behind else "!"
    return f"{result.seconds:.1f}{marks}" + (" late" if result.seconds > result.target(limit) else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--moments", nargs="+", default=MOMENTS, choices=MOMENTS)
    parser.add_argument("--seconds", type=float, default=10.0, help="the limit for starting and waiting")
    parser.add_argument("--peers", metavar="PYTHON", help="also PyTorch, with this Python that has torch")
    parser.add_argument("--show", action="store_true", help="what the workers printed")
    arguments = parser.parse_args()
    columns = [(n, rank) for n in arguments.workers for rank in range(n)]
    titles = [f"rank {rank} of {n}" for n, rank in columns]
    titles += [f"torchrun, {title}" for title in titles] if arguments.peers else []
    print("| failure | moment | " + " | ".join(titles) + " | target |")
    print("| --- " * (len(titles) + 3) + "|")
    for kind, moment in itertools.product(arguments.kinds, arguments.moments):
        print(f"| {kind} | {moment} ", end="", flush=True)
        for num_workers, rank in columns:
            result = measure(kind, rank, moment, num_workers, arguments.seconds)
            print(f"| {_cell(result, arguments.seconds)} ", end="", flush=True)
            if arguments.show:
                print(*result.left_behind, *result.outputs, sep="\n----\n")
        for num_workers, rank in columns if arguments.peers else ():
            seconds = float("nan")
            if moment == "step":
                seconds = measure_torch(arguments.peers, kind, rank, num_workers, arguments.seconds)
            print(f"| {seconds:.1f} ", end="", flush=True)
        print(f"| {result.target(arguments.seconds):g} |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
