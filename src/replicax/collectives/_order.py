"""The order of collectives between processes: they are all started here.

Collectives between processes are matched only by their order. XLA keeps the order of programs that one
thread starts, but programs of different threads may run at the same time and receive each other's data. So
every program that communicates with other processes gets a *turn*, which

* waits for the last collective if another thread started it;
* compares the collective with those of the other processes, before anything is sent, wherever they could
  differ: always in eager code, and in a compiled step when it first follows a different program;
* gives it a number and an entry in the log (`cluster/_log.py`). Steps in an order that was seen before are
  compared in the background, by their log entries.

The comparison is a message through the coordinator of `jax.distributed`. It takes longer than a small
collective, but can't be mistaken for one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax

from replicax._messages import user_line
from replicax.cluster import Collective, Entry, await_cause, collective_log, exchange_between_processes
from replicax.errors import CollectiveMismatchError, ContextError
from replicax.topology import ReplicaMesh

__all__ = ["Order", "in_order", "order_of", "order_of_all", "shapes_of"]

# How long a process waits for the others to reach a collective: one may be compiling, or evaluating.
_PATIENCE_SECONDS = 3600.0
_LOCK_SECONDS = 600.0
_MOST_SHOWN = 8


@final
class Order:
    """The collectives that this process starts together with a group of processes."""

    def __init__(self, processes: tuple[int, ...]) -> None:
        """`processes` has the indices of all processes of the group."""
        whole = processes == tuple(range(jax.process_count()))
        self.log = collective_log(None if whole else processes)
        self.processes = processes
        self._topic = f"replicax/collectives/{'-'.join(map(str, () if whole else processes))}"
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._thread: int | None = None
        self._last: Collective | None = None
        self._followed: set[tuple[Any, Collective]] = set()
        self._num_meetings = 0

    @property
    def is_held(self) -> bool:
        """Whether this thread has begun a turn; programs that it starts are part of that turn."""
        return self._holder == threading.get_ident()

    def check(self, collective: Collective) -> None:
        """Compare a compiled step with the other processes' before its turn begins."""
        self._acquire()
        try:
            self._compare(collective, None)
        finally:
            self._release()

    def begin(self, collective: Collective, batch: int | None = None) -> None:
        """Begin the turn of a compiled step; compare it unless it has followed the last one before."""
        self._acquire()
        try:
            if self._last is not collective or self._thread != self._holder:
                self._switch(collective, batch)
            self.log.record(collective, batch)
        except BaseException:
            self._release()
            raise

    def end(self, running: Any = None) -> None:
        """End the turn; `running` is an array that the collective computes."""
        if running is not None:
            self.log.running = running
        self._release()

    @contextlib.contextmanager
    def turn(
        self, collective: Collective, own: Any = None, timeout_seconds: float = _PATIENCE_SECONDS
    ) -> Iterator[list[Any]]:
        """A turn in which every process passes `own`; yields the list of what all processes passed.

        Raises:
            CollectiveMismatchError: a process is about to start a different collective.
        """
        self._acquire()
        try:
            self._take_over()
            received = self._exchange(collective, None, own, timeout_seconds)
            self._last = collective
            self.log.record(collective)
            yield received
        except Exception as error:
            await_cause(error)
            raise
        finally:
            self._release()

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            raise ContextError(
                f"A collective timed out after {_LOCK_SECONDS:g} s waiting for one that another thread of "
                "this process has started. Start collectives between processes from one thread."
            )
        self._holder = threading.get_ident()

    def _release(self) -> None:
        self._holder = None
        self._lock.release()

    def _switch(self, collective: Collective, batch: int | None) -> None:
        """Start a collective that follows a different one, or one of another thread."""
        self._compare(collective, batch)
        self._last = collective

    def _compare(self, collective: Collective, batch: int | None) -> None:
        if self._take_over() or (self._last, collective) not in self._followed:
            self._exchange(collective, batch, None)
            self._followed.add((self._last, collective))

    def _take_over(self) -> bool:
        """Make this the thread that starts collectives; returns whether it was another one before."""
        before, self._thread = self._thread, threading.get_ident()
        if before in (None, self._thread):
            return False
        running = self.log.running
        if running is not None and not running.is_deleted():
            jax.block_until_ready(running)
        return True

    def _exchange(
        self,
        collective: Collective,
        batch: int | None,
        own: Any,
        timeout_seconds: float = _PATIENCE_SECONDS,
    ) -> list[Any]:
        seq = self.log.seq + 1
        message = [seq, collective.kind, collective.values, collective.line, batch, own]
        number, self._num_meetings = self._num_meetings, self._num_meetings + 1
        self.log.pending = Entry(seq, collective, batch)
        try:
            with self.log.phase("checking"):
                received = exchange_between_processes(
                    self.processes, self._topic, number, message, lambda: False, timeout_seconds
                )
        finally:
            self.log.pending = None
        if any(not _agree(message, other) for other in received):
            raise CollectiveMismatchError(self._disagreement(received))
        return [other[5] for other in received]

    def _disagreement(self, received: Sequence[Any]) -> str:
        shown = _differing([message[2].split() for message in received])
        told = "\n".join(
            f"  process {process}: {_described(message, values)}"
            for process, message, values in zip(self.processes, received, shown, strict=True)
        )
        return (
            f"The processes are about to start different collectives:\n{told}\nNothing was sent. All "
            "processes must run the same steps, with the same shapes, and create the same variables, in "
            "the same order."
        )


def _agree(message: Any, other: Any) -> bool:
    """Whether two processes agree on the collective's number, kind, values and batch."""
    batches = {message[4], other[4]} - {None}
    return message[:3] == other[:3] and len(batches) < 2


def _described(message: Any, values: str) -> str:
    seq, kind, _, line, batch, _ = message
    of_values = f" of {values}" if values else ""
    of_batch = "" if batch is None else f" with batch {batch}"
    return f"collective {seq}, {kind}{of_values}{of_batch}, at {line}"


def _differing(values: list[list[str]]) -> list[str]:
    """The values of each process as text; if there are many, the first one that differs."""
    if max(map(len, values)) <= _MOST_SHOWN:
        return [", ".join(own) for own in values]
    columns = itertools.zip_longest(*values, fillvalue="nothing")
    column = next((i for i, column in enumerate(columns) if len(set(column)) > 1), 0)
    return [
        f"{len(own)} arrays, array {column} is {own[column] if column < len(own) else 'missing'}"
        for own in values
    ]


@functools.cache
def _order(processes: tuple[int, ...]) -> Order:
    return Order(processes)


def order_of_all() -> Order:
    """The order of collectives between all processes of the cluster."""
    return _order(tuple(range(jax.process_count())))


def order_of(mesh: ReplicaMesh) -> Order:
    """The order of collectives between the processes of `mesh`."""
    return _order(mesh.processes)


def in_order(
    mesh: ReplicaMesh, kind: str, values: Sequence[Any], start: Callable[[], Sequence[Any]]
) -> Any:
    """Start an eager collective program in its turn, after comparing it with the other processes'.

    Args:
        mesh: the program's devices.
        kind: what the program does.
        values: the arrays whose dtypes and shapes the processes must agree on.
        start: calls the program; returns arrays that it computes.
    """
    if mesh.is_local:
        return mesh.wait(start())
    order = order_of(mesh)
    if order.is_held:
        return _watched(order, start())
    with order.turn(Collective(kind, shapes_of(values), user_line())):
        return mesh.wait(_watched(order, start()))


def _watched(order: Order, outputs: Sequence[Any]) -> Sequence[Any]:
    if outputs:
        order.log.running = outputs[0]
    return outputs


def shapes_of(arrays: Sequence[Any]) -> str:
    """The dtypes and shapes of `arrays`, as the `values` of a `Collective`."""
    return " ".join(f"{array.dtype}[{','.join(map(str, array.shape))}]" for array in arrays)
