"""The log of the collectives that this process has started.

Collectives between processes work only if all processes start the same ones in the same order. So each
program that communicates gets a sequence number when it starts, and has a *fingerprint*: what it does, with
which shapes and dtypes. Processes whose fingerprints differ at the same number are running different
programs; the log also has the lines of user code, to say where.

Every training step is recorded, so recording must cost almost nothing: it sets two attributes and a slot in
a list. Other threads may read the log at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

__all__ = ["Collective", "CollectiveLog", "Entry", "State", "collective_log"]

_LENGTH = 1024
_LONGEST = 160  # how many characters of `Collective.values` a description shows


@final
@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Collective:
    """A program that communicates with other processes; compared by identity.

    Args:
        kind: what it does, such as "all-reduce SUM" or "train_step".
        values: the dtypes and shapes that processes must agree on, as text.
        line: the line of the user's code that first started it; processes may start it from different
            lines.
    """

    kind: str
    values: str
    line: str
    fingerprint: str = dataclasses.field(init=False)
    """A digest of `kind` and `values`, the same in all processes."""

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(f"{self.kind}\0{self.values}".encode(), digest_size=8).hexdigest()
        object.__setattr__(self, "fingerprint", digest)

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.values} ({self.line})" if self.values else f"{self.kind} ({self.line})"
        )


class Entry(NamedTuple):
    """One collective that was started."""

    seq: int
    collective: Collective
    batch: int | None
    """The number of the batch from a distributed dataset that it got; None if it got none."""


class State(NamedTuple):
    """What a process is doing."""

    what: str
    """A phase, "checking", "compiling", "input" or "checkpoint"; otherwise "running", which is between two
    collectives or in the last one. Collectives run asynchronously, so Python can't tell these apart."""
    seq: int
    """The number of the last collective that was started."""
    since: float
    """When the phase, or otherwise the last collective, started, by `time.monotonic()`."""


@final
class CollectiveLog:
    """The last 1024 collectives that this process has started with a group of processes.

    >>> from replicax.cluster import Collective, CollectiveLog
    >>> log = CollectiveLog()
    >>> step = Collective("train_step", "float32[8]", "train.py:7")
    >>> log.record(step), log.record(step), log.seq
    (1, 2, 2)
    >>> [(entry.seq, entry.collective.kind) for entry in log.recent(2)]
    [(1, 'train_step'), (2, 'train_step')]
    >>> log.state.what
    'running'
    """

    __slots__ = ("_batch", "_entries", "_phase", "_since", "pending", "running", "seq")

    def __init__(self) -> None:
        self.seq = 0
        self._batch: tuple[int, Any] = (0, None)
        self.pending: Entry | None = None
        """The collective that this process is about to start, while it is checked against the others'."""
        self.running: Any = None
        """A result of the last collective, to wait for; None if it has none."""
        self._entries: list[Entry | None] = [None] * _LENGTH
        self._since = time.monotonic()
        self._phase: tuple[str, float] | None = None

    def offer(self, number: int, array: Any) -> None:
        """Remember one array of the batch that the program got last."""
        self._batch = (number, array)

    def batch_in(self, arguments: Sequence[Any]) -> int | None:
        """The number of the last batch, if its remembered array is among `arguments`."""
        number, array = self._batch
        for argument in arguments:
            if argument is array and array is not None:
                return number
        return None

    def record(self, collective: Collective, batch: int | None = None) -> int:
        """Record that a collective is being started; returns its number."""
        seq = self.seq + 1
        self._entries[seq % _LENGTH] = Entry(seq, collective, batch)
        self._since = time.monotonic()
        self.seq = seq
        return seq

    @property
    def last(self) -> Entry | None:
        """The last collective that was started."""
        return self._entries[self.seq % _LENGTH]

    def recent(self, count: int) -> list[Entry]:
        """The last `count` collectives, oldest first; any thread may call this."""
        last = self.seq
        numbers = range(max(1, last - count + 1), last + 1)
        found = [self._entries[seq % _LENGTH] for seq in numbers]
        return [entry for entry, seq in zip(found, numbers, strict=True) if entry and entry.seq == seq]

    @contextlib.contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """A `with` block in which the process waits for something other than a collective."""
        outer, self._phase = self._phase, (what, time.monotonic())
        try:
            yield
        finally:
            self._phase = outer

    @property
    def state(self) -> State:
        """What the process is doing; any thread may call this."""
        phase, since, seq = self._phase, self._since, self.seq
        return State("running", seq, since) if phase is None else State(phase[0], seq, phase[1])


_logs: dict[tuple[int, ...] | None, CollectiveLog] = {None: CollectiveLog()}


def collective_log(processes: Sequence[int] | None = None) -> CollectiveLog:
    """The log of this process's collectives with all processes, or with some of them.

    Args:
        processes: a subset of the cluster; None means all processes.

    >>> from replicax.cluster import collective_log
    >>> collective_log() is collective_log()
    True
    """
    key = None if processes is None else tuple(processes)
    return _logs.setdefault(key, CollectiveLog()) if key not in _logs else _logs[key]
