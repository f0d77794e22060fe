"""Fault injection: makes a chosen rank fail at a named point of its program.

The workers' function names its points: `testing.point("step 3")`. The test says what happens to which rank
there: `testing.run(train, faults=[testing.kill(1, at="step 3")])`. A point without a fault only records
that it was reached, which `Workers.wait_for` waits for.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

__all__ = ["Fault", "Points", "delay", "kill", "point", "rank", "starve", "stop"]


@final
@dataclass(frozen=True)
class Fault:
    """A fault that hits one rank at a point; created by `kill`, `stop`, `delay` and `starve`.

    Args:
        rank: the worker that it hits.
        at: the name of the point. The fault happens once, the first time the worker gets there.
        kind: what happens.
        seconds: the length of a delay.

    >>> from replicax import testing
    >>> testing.kill(1, at="step 3")
    Fault(rank=1, at='step 3', kind='kill', seconds=0.0)
    """

    rank: int
    at: str
    kind: Literal["kill", "stop", "delay", "starve"]
    seconds: float = 0.0

    def happen(self) -> None:
        """Inject the fault into this process, or into the calling thread."""
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "delay":
            time.sleep(self.seconds)
        else:
            threading.Event().wait()


def kill(rank: int, *, at: str) -> Fault:
    """Kill the rank at the point with SIGKILL, so that it can't clean up.

    >>> from replicax import testing
    >>> testing.kill(0, at="saving").kind
    'kill'
    """
    return Fault(rank, at, "kill")


def stop(rank: int, *, at: str) -> Fault:
    """Stop the rank at the point with SIGSTOP: the process exists, but none of its threads run.

    `Workers.resume` lets it continue.

    >>> from replicax import testing
    >>> testing.stop(1, at="step 3").kind
    'stop'
    """
    return Fault(rank, at, "stop")


def delay(rank: int, *, at: str, seconds: float) -> Fault:
    """Make the thread that reaches the point sleep there, and then continue.

    >>> from replicax import testing
    >>> testing.delay(1, at="step 3", seconds=10).seconds
    10
    """
    return Fault(rank, at, "delay", seconds)


def starve(rank: int, *, at: str) -> Fault:
    """Make the thread that reaches the point wait forever, as if for data that never arrives.

    In a dataset's generator, this simulates a stuck reader; the rank's other threads continue.

    >>> from replicax import testing
    >>> testing.starve(1, at="batch 7").kind
    'starve'
    """
    return Fault(rank, at, "starve")


@final
class Points:
    """The points that this process has reached, and the faults that wait there."""

    def __init__(self, notes: Path | None = None, faults: Iterable[Fault] = ()) -> None:
        """Record points in a file, one per line; without a file, only inject faults."""
        self._notes = notes
        self._faults = {fault.at: fault for fault in faults}

    def reach(self, name: str) -> None:
        """Record the point, then inject its fault, if any."""
        if self._notes is not None:
            with self._notes.open("a") as file:
                file.write(json.dumps(name) + "\n")
        if (fault := self._faults.pop(name, None)) is not None:
            fault.happen()


_points = Points()


def use_points(points: Points) -> None:
    """Make `point` use these points in this process."""
    global _points
    _points = points


def point(name: str) -> None:
    """Mark a point of the program, where faults can happen and which `Workers.wait_for` can wait for.

    Any thread may call this. In a process that `replicax.testing` did not start, it does nothing.

    >>> from replicax import testing
    >>> for step in range(2):
    ...     testing.point(f"step {step}")
    """
    _points.reach(name)


def rank() -> int:
    """The rank of this worker, from TF_CONFIG; 0 in a process that runs alone.

    >>> from replicax import testing
    >>> testing.rank()
    0
    """
    return int(json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0))
