"""The outcome of a worker, and how its result or error gets from its process to this one."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from replicax.launch import describe_status

__all__ = ["Outcome", "Report", "describe_failure", "first_failure", "read_report", "write_report"]

_LONGEST_OUTPUT = 6000


@final
@dataclass(frozen=True)
class Report:
    """What a worker reports when its function has returned or raised."""

    value: Any = None
    error: BaseException | None = None
    traceback: str | None = None


@final
@dataclass(frozen=True)
class Outcome:
    """The outcome of one worker.

    Args:
        rank: the worker.
        status: the exit status of its process; negative for a signal.
        value: what its function returned.
        error: what its function raised; None if it returned, or if the process died first.
        traceback: the traceback of `error`, as text.
        output: everything that the process wrote to stdout and stderr.
        points: the points that it reached, in order.
        seconds: how long the process ran.
        stopped: whether the process was still running at the timeout, and was killed.

    >>> from replicax import testing
    >>> testing.Outcome(rank=1, status=-9).failed
    True
    """

    rank: int
    status: int
    value: Any = None
    error: BaseException | None = None
    traceback: str | None = None
    output: str = ""
    points: Sequence[str] = ()
    seconds: float = 0.0
    stopped: bool = False

    @property
    def failed(self) -> bool:
        """Whether the function raised, or the process exited with another status than 0."""
        return self.status != 0 or self.error is not None

    def __str__(self) -> str:
        if self.stopped:
            return f"rank {self.rank} was still running after {self.seconds:.1f} s and was killed"
        raised = "" if self.error is None else f", having raised {type(self.error).__name__}: {self.error}"
        return f"rank {self.rank} {describe_status(self.status)} after {self.seconds:.1f} s{raised}"


def first_failure(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The first rank that failed on its own; otherwise one that was still running."""
    failed = [outcome for outcome in outcomes if outcome.failed]
    return min(failed, key=lambda outcome: (outcome.stopped, outcome.seconds), default=None)


def describe_failure(outcomes: Sequence[Outcome], first: Outcome) -> str:
    """The outcome and output of every rank, and the traceback of the first failure."""
    parts = [str(first)]
    parts += [f"  {outcome}" for outcome in outcomes if outcome is not first]
    for outcome in outcomes:
        parts += [f"---- rank {outcome.rank} printed:", outcome.output[-_LONGEST_OUTPUT:].rstrip()]
    if first.traceback is not None:
        parts += [f"---- rank {first.rank} raised:", first.traceback.rstrip()]
    return "\n".join(parts)


def write_report(path: Path, report: Report) -> None:
    """Write the report atomically."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(_pickle_report(report))
    os.replace(unfinished, path)


def read_report(path: Path) -> Report:
    """Read the report; an empty one if the worker did not get that far."""
    return pickle.loads(path.read_bytes()) if path.exists() else Report()


def _pickle_report(report: Report) -> bytes:
    try:
        data = pickle.dumps(report)
        if report.error is not None:
            pickle.loads(data)  # many exceptions pickle fine but fail to unpickle
        return data
    except Exception as problem:
        return pickle.dumps(_without_objects(report, problem))


def _without_objects(report: Report, problem: Exception) -> Report:
    if report.error is None:
        error = TypeError(
            f"The worker's function returned a {type(report.value).__name__}, which can't be pickled "
            f"({problem}). Return NumPy arrays, numbers, strings, and containers of them."
        )
        return Report(error=error)
    summary = "".join(traceback.format_exception_only(report.error)).strip()
    return Report(error=RuntimeError(summary), traceback=report.traceback)
