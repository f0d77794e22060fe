"""What happens when a worker or a parameter server fails in the middle of something, and how long it takes.

    python -m tests.parameter_server.faults
    python -m tests.parameter_server.faults --times 20
    python -m tests.parameter_server.faults --kinds stop --tasks ps --moments pull save

One local cluster of two workers and two servers serves all faults. Each fault hits a worker or a server in
a step, in a pull or while the coordinator saves a checkpoint; SIGKILL ends the process, SIGSTOP makes it
silent. The last line of the table is an exception in a function. Figures are seconds from the fault, the
smallest, the median and the largest: until the coordinator has noticed it, until the task is replaced, and
until the function or the checkpoint that was hit is done. What does not hold is printed as a problem:

* every function runs, and what it has written is counted, at least once;
* a server loses nothing that its last snapshot has;
* functions run afterwards in the same coordinator, and are counted exactly;
* a checkpoint that was saved meanwhile can be read;
* the process that failed is gone, and after the end so are all others.
"""

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.parameter_server._handles import ServerHandle

KINDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
TASKS = ("worker", "ps")
MOMENTS = ("step", "pull", "save")
GROUP = "REPLICAX_TEST_GROUP"
BALLAST = 250_000  # float32 numbers on each server: each pull moves 2 MB


def strike(folder, moment):
    """Send the signal that the file `plan` asks for at this moment, once; called in all processes."""
    plan = Path(folder, "plan")
    with contextlib.suppress(OSError, json.JSONDecodeError):
        asked = json.loads(plan.read_text())
        if asked["moment"] != moment:
            return
        pid = asked["pid"] or os.getpid()
        taken = Path(folder, f"taken {pid}")
        plan.rename(taken)  # one process succeeds
        Path(folder, "struck").write_text(json.dumps({"pid": pid, "time": time.monotonic()}))
        os.kill(pid, asked["signal"])


def watch_pulls(folder, moment):
    """Strike in this process as soon as a pull has been sent."""
    call = ServerHandle.call
    if hasattr(call, "moments"):
        return

    def striking_call(self, method, *arguments):
        sent = call(self, method, *arguments)
        if method == "pull":
            strike(folder, moment)
        return sent

    striking_call.moments = True
    ServerHandle.call = striking_call


class Events(logging.Handler):
    """What Replicax logs, with the time."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((time.monotonic(), record.getMessage()))

    def since(self, start, words):
        return [when for when, message in self.seen if when >= start and words in message]


@dataclasses.dataclass
class Outcome:
    """What became of one fault."""

    detected: float
    replaced: float
    done: float
    problems: list


class Matrix:
    """Faults in a cluster that runs.

    Args:
        strategy: it needs two servers.
        coordinator: of the strategy.
        folder: for plans and checkpoints; empty.
    """

    def __init__(self, strategy, coordinator, folder):
        self.strategy, self.coordinator, self.folder = strategy, coordinator, str(folder)
        self.cluster = strategy.cluster
        self.events = Events()
        logging.getLogger("replicax").addHandler(self.events)
        with strategy.scope():
            self.counts = [rx.Variable(0.0, name=f"count{i}") for i in range(2)]
            self.ballast = [rx.Variable(jnp.zeros(BALLAST), name=f"ballast{i}") for i in range(2)]
        self.checkpoint = rx.Checkpoint(counts=self.counts, ballast=self.ballast)
        self.add = self._make_function()
        self._number = 0
        watch_pulls(self.folder, "save")

    def _make_function(self):
        folder, counts, ballast = self.folder, self.counts, self.ballast

        @rx.function
        def step():
            jax.debug.callback(lambda: strike(folder, "step"))
            for count in counts:
                count.assign_add(1.0)
            return sum(x[0] for x in ballast)

        def add():
            watch_pulls(folder, "pull")
            return step()

        return add

    def values(self):
        """How often the function was counted, on each server."""
        return [float(count.numpy()) for count in self.counts]

    def run_functions(self, count):
        """Run the function; returns the values."""
        values = [self.coordinator.schedule(self.add) for _ in range(count)]
        self.coordinator.join()
        return [value.status.name for value in values]

    def await_snapshots(self):
        """Wait until every server has been saved after its last update."""
        start = time.monotonic()
        while min(server.saved.time for server in self.cluster.servers) < start:
            time.sleep(0.02)

    def fault(self, kind, task, moment):
        """Let one process fail, and see what becomes of it."""
        self.run_functions(2)  # so that every worker is there, and has compiled
        self.await_snapshots()
        before, path = self.values(), None
        self._plan(kind, task, moment)
        scheduled = [self.coordinator.schedule(self.add) for _ in range(6)]
        if moment == "save":
            path = self.checkpoint.save(f"{self.folder}/checkpoint")
        self.coordinator.join()
        done, after = time.monotonic(), self.values()
        struck = json.loads(Path(self.folder, "struck").read_text())
        replaced = self._await_event(struck["time"], f"{task} ", "was replaced")
        status = self.run_functions(3)
        problems = [
            *self._check_counts(task, before, after, self.values()),
            *self._check_checkpoint(path, before),
            *self._check_gone(struck["pid"]),
        ]
        if {"READY"} != {*status, *(value.status.name for value in scheduled)}:
            problems.append("a function did not run")
        failures = self.events.since(struck["time"], " failed (")
        if len(failures) > 1:
            problems.append(f"{len(failures)} tasks counted as failed")
        detected = failures[0] if failures else float("inf")
        return Outcome(*(x - struck["time"] for x in (detected, replaced, done)), problems)

    def _plan(self, kind, task, moment):
        Path(self.folder, "struck").unlink(missing_ok=True)
        self._number += 1
        pid = None  # the process that reaches the moment
        if task == "ps":
            pid = self.cluster.ping(self.cluster.servers[self._number % 2].actor)
        elif moment == "save":
            pid = self.cluster.ping(self.strategy.workers[self._number % 2])
        plan = Path(self.folder, "plan.tmp")
        plan.write_text(json.dumps({"moment": moment, "pid": pid, "signal": int(KINDS[kind])}))
        plan.rename(Path(self.folder, "plan"))

    def _await_event(self, start, *words):
        """When it was logged."""
        while True:
            for when, message in list(self.events.seen):
                if when >= start and all(word in message for word in words):
                    return when
            time.sleep(0.02)

    def _check_counts(self, task, before, after, final):
        for i, (first, then, last) in enumerate(zip(before, after, final, strict=True)):
            lost = task == "ps" and self._number % 2 == self.counts[i].layout.placement.parts[0].server
            least, most = first + (0 if lost else 6), first + 8  # a function may run again, in two workers
            if not least <= then <= most:
                yield f"count {i} is {then:g} after 6 functions from {first:g}"
            if last != then + 3:
                yield f"count {i} is {last:g} after 3 functions from {then:g}"

    def _check_checkpoint(self, path, before):
        if path is None:
            return
        counts = [rx.Variable(0.0) for _ in range(2)]
        ballast = [rx.Variable(jnp.zeros(BALLAST)) for _ in range(2)]
        rx.Checkpoint(counts=counts, ballast=ballast).restore(path)
        found = [float(count.numpy()) for count in counts]
        if not all(x <= y <= x + 8 for x, y in zip(before, found, strict=True)):
            yield f"the checkpoint has {found}, saved after {before}"

    def _check_gone(self, pid):
        deadline = time.monotonic() + 10
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if is_alive(pid):
            yield f"process {pid} is left behind"

    def exception(self):
        """An exception in a function is raised by `join`; functions run afterwards."""

        def fail():
            raise ValueError(time.monotonic())

        problems, before = [], self.values()
        waiting = []
        try:  # the next call raises it, whichever that is
            self.coordinator.schedule(fail)
            waiting.extend(self.coordinator.schedule(self.add) for _ in range(20))
            self.coordinator.join()
            problems.append("join did not raise")
            raised = time.monotonic()
        except ValueError as error:
            (raised,) = error.args
        detected = time.monotonic()
        with contextlib.suppress(ValueError):
            self.coordinator.join()  # what is running runs to its end
        ran = sum(value.status.name == "READY" for value in waiting)
        self.run_functions(1)
        done = time.monotonic()
        if self.values() != [count + ran + 1 for count in before]:
            problems.append(f"{self.values()} after {ran} + 1 functions from {before}")
        return Outcome(detected - raised, done - raised, done - raised, problems)


def is_alive(pid):
    """Whether a process exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def group_members():
    """The other processes that have inherited this one's group."""
    mark = f"{GROUP}={os.environ[GROUP]}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return [pid for pid in found if is_alive(pid)]


def figures(seconds):
    """The smallest, the median and the largest."""
    return " ".join(f"{x:5.2f}" for x in (min(seconds), statistics.median(seconds), max(seconds)))


def show(name, outcomes):
    """One line of the table, and the problems."""
    columns = [[getattr(x, field) for x in outcomes] for field in ("detected", "replaced", "done")]
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    text = " | ".join(figures(column) for column in columns)
    print(f"{name:18} | {len(outcomes):5} | {text} | {len(problems)}", flush=True)
    for problem in dict.fromkeys(problems):
        print(f"    {problem}", flush=True)
    return len(problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1, help="how often each fault")
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, "exception"], choices=[*KINDS, "exception"])
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=TASKS)
    parser.add_argument("--moments", nargs="*", default=MOMENTS, choices=MOMENTS)
    parser.add_argument("--heartbeat", type=float, default=3.0, help="heartbeat_timeout_seconds")
    arguments = parser.parse_args()
    os.environ[GROUP] = uuid.uuid4().hex
    np.random.seed(0)
    strategy = rx.ParameterServerStrategy(
        num_ps=2,
        num_workers=2,
        snapshot_seconds=0.5,
        heartbeat_timeout_seconds=arguments.heartbeat,
    )
    problems = 0
    with tempfile.TemporaryDirectory() as folder:
        matrix = Matrix(strategy, rx.ClusterCoordinator(strategy), folder)
        matrix.run_functions(4)
        titles = [f"{name:^17}" for name in ("detected", "replaced", "done")]
        print(f"{'fault':18} | times | {' | '.join(titles)} | problems", flush=True)
        for kind in (kind for kind in KINDS if kind in arguments.kinds):
            for task in arguments.tasks:
                for moment in arguments.moments:
                    outcomes = [matrix.fault(kind, task, moment) for _ in range(arguments.times)]
                    problems += show(f"{kind} {task}, {moment}", outcomes)
        if "exception" in arguments.kinds:
            problems += show("exception", [matrix.exception() for _ in range(arguments.times)])
        strategy.shutdown()
    deadline = time.monotonic() + 15
    while (left := group_members()) and time.monotonic() < deadline:
        time.sleep(0.1)
    print(f"{problems} problems; processes left behind: {left or 'none'}")
    return 1 if problems or left else 0


if __name__ == "__main__":
    sys.exit(main())
