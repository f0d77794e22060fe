"""Faults at chosen points of the workers' function.

The function names its points: `testing.point("step 3")`. The test says what happens to which rank there:
`testing.run(train, faults=[testing.kill(1, at="step 3")])`. A point without a fault only notes that it was
reached, which `Workers.wait_for` waits for.
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
    """Something that happens to one rank when it reaches a point; made by `kill`, `stop` and the others.

    Args:
        rank: the worker that it happens to.
        at: the name of the point. The fault happens once, the first time the worker gets there.
        kind: what happens.
        seconds: for how long, if it is a delay.

    >>> from replicax import testing
    >>> testing.kill(1, at="step 3")
    Fault(rank=1, at='step 3', kind='kill', seconds=0.0)
    """

    rank: int
    at: str
    kind: Literal["kill", "stop", "delay", "starve"]
    seconds: float = 0.0

    def happen(self) -> None:
        """Do it, to this process or to the calling thread."""
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "delay":
            time.sleep(self.seconds)
        else:
            threading.Event().wait()


def kill(rank: int, *, at: str) -> Fault:
    """The rank is killed at the point, by SIGKILL: it can't clean up.

    >>> from replicax import testing
    >>> testing.kill(0, at="saving").kind
    'kill'
    """
    return Fault(rank, at, "kill")


def stop(rank: int, *, at: str) -> Fault:
    """The rank is stopped at the point, by SIGSTOP: it exists, but no thread of it runs.

    `Workers.resume` lets it continue.

    >>> from replicax import testing
    >>> testing.stop(1, at="step 3").kind
    'stop'
    """
    return Fault(rank, at, "stop")


def delay(rank: int, *, at: str, seconds: float) -> Fault:
    """The thread of the rank that reaches the point sleeps there, and then continues.

    >>> from replicax import testing
    >>> testing.delay(1, at="step 3", seconds=10).seconds
    10
    """
    return Fault(rank, at, "delay", seconds)


def starve(rank: int, *, at: str) -> Fault:
    """The thread of the rank that reaches the point waits there forever, as for data that never arrives.

    In a dataset's generator, this simulates a stuck reader; the other threads of the rank continue.

    >>> from replicax import testing
    >>> testing.starve(1, at="batch 7").kind
    'starve'
    """
    return Fault(rank, at, "starve")


@final
class Points:
    """The points that this process has reached, and the faults that wait there."""

    def __init__(self, notes: Path | None = None, faults: Iterable[Fault] = ()) -> None:
        """Note points in a file, one in each line; None only looks for faults."""
        self._notes = notes
        self._faults = {fault.at: fault for fault in faults}

    def reach(self, name: str) -> None:
        """Note the point; then let its fault happen."""
        if self._notes is not None:
            with self._notes.open("a") as file:
                file.write(json.dumps(name) + "\n")
        if (fault := self._faults.pop(name, None)) is not None:
            fault.happen()


_points = Points()


def use_points(points: Points) -> None:
    """Let `point` of this process reach these."""
    global _points
    _points = points


def point(name: str) -> None:
    """Name a point of the program, where faults can happen and which `Workers.wait_for` can wait for.

    Any thread may call it. In a process that `replicax.testing` did not start, it does nothing.

    >>> from replicax import testing
    >>> for step in range(2):
    ...     testing.point(f"step {step}")
    """
    _points.reach(name)


def rank() -> int:
    """The index of this worker, from TF_CONFIG; 0 in a process that is not one of several.

    >>> from replicax import testing
    >>> testing.rank()
    0
    """
    return int(json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0))
