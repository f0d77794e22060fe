"""The judge: decides which worker has failed, from the workers' own reports.

Every worker reports its progress a few times a second: how many collectives it has started, the current
line of the user's program, and which message it is waiting for. It also reports an exception that ends its
program, and the normal end of its program. A worker that disconnects without either has died.

A worker that is silent or makes no progress has not failed: it may be computing for hours. It is *stuck*
when others have waited for it for too long in a collective that it has not started, unless it is compiling
or writing a checkpoint.

The coordinator imports this module without JAX, so it uses only the standard library. Times are passed in,
as seconds of one clock, so that tests need not wait.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, final

__all__ = ["Judge", "Verdict"]

# A worker that is connected to a dead one fails, too, sometimes before the death is noticed.
_CONSEQUENCE_SECONDS = 1.0
# Reports are not simultaneous, so a difference in pending collectives counts only if it lasts.
_PENDING_SECONDS = 0.5
# The last messages of a worker that has exited arrive within this time.
_MESSAGE_SECONDS = 0.5
# How long to wait for the stacks of the workers.
_STACKS_SECONDS = 2.0
# States that may last a long time, and how long a worker in one of them may be silent.
_PATIENT_STATES = ("compiling", "checkpoint")
_SILENT_SECONDS = 1.0


@final
@dataclasses.dataclass(frozen=True)
class Verdict:
    """What all workers are told when one has failed: an error class and its arguments."""

    error: str
    rank: int
    step: int
    message: str
    traceback: str = ""


@final
@dataclasses.dataclass
class _Worker:
    """What is known about one worker."""

    rank: int
    name: str
    heard: float
    step: int = 0
    line: str = ""
    state: str = ""
    collectives: dict[int, list[Any]] = dataclasses.field(default_factory=dict)
    """Number of a collective -> fingerprint, description, batch, and the digest of all up to it."""
    pending: list[Any] | None = None
    """The collective that it is about to start: the number, the same fields, and since when."""
    pending_since: float = 0.0
    waits_for: dict[str, Any] | None = None
    waits_since: float = 0.0
    behind_since: float | None = None
    failure: dict[str, Any] | None = None
    failed_at: float = 0.0
    gone: str = ""
    """'left' if its program ended normally, 'died' if its process was lost; empty while it runs."""
    gone_at: float = 0.0
    stacks: str | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.name})"

    def is_excused(self, now: float) -> bool:
        """Whether it is doing something that may take a long time."""
        return self.state in _PATIENT_STATES and now - self.heard < _SILENT_SECONDS

    @property
    def waits(self) -> str:
        """The message that it is waiting for."""
        return "" if self.waits_for is None else self.waits_for["what"]

    def still_waits_for(self, other: _Worker) -> bool:
        """Whether it waits for a message from `other`, and has since `other` disconnected."""
        if self.waits_for is None or self.waits_for["rank"] != other.rank:
            return False
        return not other.gone or self.heard >= other.gone_at + _MESSAGE_SECONDS

    @property
    def place(self) -> str:
        """Where its program was at its last report."""
        return f"collective {self.step}" + (f", {self.line}" if self.line else "")


@final
class Judge:
    """Collects the reports of all workers and decides, once for all of them, what has failed."""

    def __init__(self, names: Sequence[str], stuck_seconds: float, now: float) -> None:
        """Expect reports from workers with these names, by rank."""
        self._workers = [_Worker(rank, name, now) for rank, name in enumerate(names)]
        self._stuck_seconds = stuck_seconds
        self._stacks_asked: float | None = None

    @property
    def wants_stacks(self) -> bool:
        """Whether the workers should send their stacks."""
        return self._stacks_asked is not None

    def hear(self, rank: int, message: dict[str, Any], now: float) -> None:
        """Process a worker's report."""
        worker = self._workers[rank]
        worker.heard = now
        match message["kind"]:
            case "progress":
                self._hear_progress(worker, message, now)
            case "failed":
                worker.failure, worker.failed_at = message, now
                worker.step = message["step"]
            case "leaving":
                worker.gone, worker.gone_at, worker.step = "left", now, message["step"]
            case "stacks":
                worker.stacks = message["text"]
            case other:
                raise ValueError(f"unknown report {other!r}")

    def _hear_progress(self, worker: _Worker, message: dict[str, Any], now: float) -> None:
        if message["step"] != worker.step:
            worker.behind_since = None
        worker.step, worker.line, worker.state = message["step"], message["line"], message["state"]
        worker.collectives = {step: what for step, *what in message["collectives"]}
        if message["pending"] != worker.pending:
            worker.pending, worker.pending_since = message["pending"], now
        if message["waits_for"] != worker.waits_for:
            worker.waits_for, worker.waits_since = message["waits_for"], now

    def lose(self, rank: int, now: float) -> None:
        """A worker has disconnected."""
        worker = self._workers[rank]
        if not worker.gone:
            worker.gone, worker.gone_at = "died", now

    def decide(self, now: float) -> Verdict | None:
        """What has failed; None while nothing has."""
        self._update_behind(now)
        for rule in (self._failed, self._died, self._failed_by_another, self._different, self._left):
            if (verdict := rule(now)) is not None:
                return verdict
        return self._stuck(now)

    def _update_behind(self, now: float) -> None:
        first = max((worker.step for worker in self._workers if not worker.gone), default=0)
        for worker in self._workers:
            if worker.gone or worker.step >= first or worker.is_excused(now):
                worker.behind_since = None
            elif worker.behind_since is None:
                worker.behind_since = now

    def _failed(self, now: float) -> Verdict | None:
        failed = [w for w in self._workers if w.failure is not None and not w.failure["by_another"]]
        return _verdict_of_failure(min(failed, key=lambda w: w.failed_at)) if failed else None

    def _failed_by_another(self, now: float) -> Verdict | None:
        failed = [w for w in self._workers if w.failure is not None]
        ripe = [w for w in failed if now - w.failed_at >= _CONSEQUENCE_SECONDS]
        if not ripe:
            return None
        worker = min(ripe, key=lambda w: w.failed_at)
        for left in (w for w in self._workers if w.gone == "left"):
            return _verdict_of_left(left, f"{worker} needs it at {worker.place}")
        return _verdict_of_failure(worker)

    def _died(self, now: float) -> Verdict | None:
        died = [w for w in self._workers if w.gone == "died" and w.failure is None]
        if not died:
            return None
        worker = min(died, key=lambda w: w.gone_at)
        return Verdict(
            "WorkerLostError",
            worker.rank,
            worker.step,
            f"{worker} has died, last seen at {worker.place}: its process ended without a report. A "
            "signal, the out-of-memory killer or a crash in native code may have ended it; see its own "
            "output. Restart all workers from the last checkpoint.",
        )

    def _different(self, now: float) -> Verdict | None:
        for worker in self._workers[1:]:
            first = self._workers[0]
            for step in sorted(worker.collectives.keys() & first.collectives.keys()):
                if _differ(worker.collectives[step], first.collectives[step]):
                    return _verdict_of_difference(step, first, worker)
        return self._about_to_differ()

    def _about_to_differ(self) -> Verdict | None:
        """A worker is about to start a collective that differs from one another worker has started.

        If neither has started, the workers notice by themselves: they compare collectives before starting.
        """
        for worker, other in itertools.permutations(self._workers, 2):
            if worker.pending is None or worker.heard - worker.pending_since < _PENDING_SECONDS:
                continue
            step, what = worker.pending[0], worker.pending[1:5]
            if step in other.collectives and _differ(what, other.collectives[step]):
                pending = dataclasses.replace(worker, collectives={step: what})
                return _verdict_of_difference(step, *sorted((pending, other), key=lambda w: w.rank))
        return None

    def _left(self, now: float) -> Verdict | None:
        for worker in self._workers:
            if worker.gone == "left":
                for other, what in self._waiting_for(worker):
                    return _verdict_of_left(worker, f"{other} waits for it in {what}")
        return None

    def _waiting_for(self, worker: _Worker) -> Iterator[tuple[_Worker, str]]:
        """The workers that wait for `worker`, each with the collective or message that it waits in."""
        for other in self._workers:
            if other.gone:
                continue
            if other.step > worker.step:
                yield other, other.place
            elif other.still_waits_for(worker):
                yield other, f"{other.waits}, {other.line}"

    def _stuck(self, now: float) -> Verdict | None:
        worker = next((w for w in self._workers if self._is_overdue(w, now)), None)
        if worker is None:
            self._stacks_asked = None
            return None
        if self._stacks_asked is None:
            self._stacks_asked = now
            return None
        complete = all(w.stacks is not None for w in self._workers if not w.gone)
        if complete or now - self._stacks_asked >= _STACKS_SECONDS:
            return self._verdict_of_stuck(worker, now)
        return None

    def _is_overdue(self, worker: _Worker, now: float) -> bool:
        if worker.behind_since is not None and now - worker.behind_since >= self._stuck_seconds:
            return True
        return not (worker.gone or worker.is_excused(now)) and any(
            other.still_waits_for(worker) and now - other.waits_since >= self._stuck_seconds
            for other in self._workers
        )

    def _verdict_of_stuck(self, worker: _Worker, now: float) -> Verdict:
        waiting = ", ".join(f"{other} in {what}" for other, what in self._waiting_for(worker))
        silent = now - worker.heard
        if silent > self._stuck_seconds / 2:
            state = f"no heartbeat for {silent:.0f} s, so its process or host is stopped"
        else:
            state = "its process is alive, but makes no progress"
        message = (
            f"{worker} is stuck, last seen at {worker.place}: {state}. These workers have waited for it "
            f"for more than {self._stuck_seconds:g} s: {waiting}. If it does work that the others must "
            "wait for (evaluation on one rank, slow input), allow more time with "
            "ClusterOptions(stuck_timeout_seconds=...); otherwise its stack shows where it is:\n"
            + "\n".join(_format_stacks(w, now) for w in self._workers)
        )
        return Verdict("WorkerStuckError", worker.rank, worker.step, message, worker.stacks or "")


def _verdict_of_failure(worker: _Worker) -> Verdict:
    failure = worker.failure
    assert failure is not None
    return Verdict(
        "WorkerFailedError",
        worker.rank,
        worker.step,
        f"{worker} failed at {worker.place}, with {failure['type']}: {failure['message']}\n"
        f"The traceback of rank {worker.rank}:\n{failure['traceback'].rstrip()}",
        failure["traceback"],
    )


def _verdict_of_left(worker: _Worker, problem: str) -> Verdict:
    return Verdict(
        "WorkerLeftError",
        worker.rank,
        worker.step,
        f"{worker} has ended after collective {worker.step}, at the end of its program or by sys.exit, "
        f"but {problem}. All workers must run the same steps: check that they have the same data and "
        "number of steps, and take the same branches.",
    )


def _differ(one: list[Any], other: list[Any]) -> bool:
    """Whether two workers have started different collectives, at this number or before."""
    fingerprints, _, batches, digests = zip(one, other, strict=True)
    return fingerprints[0] != fingerprints[1] or _known_to_differ(batches) or _known_to_differ(digests)


def _known_to_differ(values: tuple[Any, ...]) -> bool:
    return None not in values and values[0] != values[1]


def _verdict_of_difference(step: int, first: _Worker, other: _Worker) -> Verdict:
    told = " and ".join(f"{worker} {_started(worker.collectives[step])}" for worker in (first, other))
    return Verdict(
        "CollectiveMismatchError",
        other.rank,
        step,
        f"The workers have started different collectives, number {step} or one before: {told}. All "
        "workers must start the same collectives with the same batches, in the same order: check that they "
        "have the same data and number of steps, and take the same branches.",
    )


def _started(collective: list[Any]) -> str:
    _, what, batch, _ = collective
    return f"started {what}" + (f" with batch {batch}" if batch is not None else "")


def _format_stacks(worker: _Worker, now: float) -> str:
    if worker.gone:
        return f"---- {worker} has {worker.gone}"
    if worker.stacks is None:
        ago = now - worker.heard
        return f"---- {worker} did not answer; last heartbeat {ago:.0f} s ago, at {worker.place}"
    return f"---- the stack of {worker}:\n{worker.stacks.rstrip()}"
