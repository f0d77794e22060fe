"""The hub: the coordinator's server, which all workers connect to and which tells all when one has failed.

Every worker connects and identifies itself before JAX connects to anything. So a missing worker, a rank
that is taken twice and clusters that differ are detected before they can do harm. The connections stay open
until the processes exit: if a process dies, the operating system closes its connection.

The coordinator imports this module without JAX, so it uses only the standard library.
"""

from __future__ import annotations

import dataclasses
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, final

from replicax.cluster._judge import Judge, Verdict
from replicax.cluster._wire import Connection

__all__ = ["GREETING", "Hub"]

GREETING = {"kind": "replicax", "protocol": 1}
"""The first message on every connection; it tells a worker that this is a hub."""

_TICK_SECONDS = 0.1


@final
class Hub:
    """Serves the workers of one cluster in one thread, until all have disconnected."""

    def __init__(
        self,
        listener: socket.socket,
        parent: Any,
        tasks: Sequence[str],
        stuck_seconds: float,
        start_service: Callable[[], str],
    ) -> None:
        """Serve on `listener`. At the EOF of `parent`, rank 0's pipe, stop unless all have joined."""
        self._listener, self._parent, self._tasks = listener, parent, list(tasks)
        self._stuck_seconds, self._start_service = stuck_seconds, start_service
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(parent, selectors.EVENT_READ, self._lose_parent)
        self._ranks: dict[Connection, int | None] = {}
        self._present: dict[int, dict[str, Any]] = {}
        self._judge: Judge | None = None
        self._verdict: Verdict | None = None
        self._stacks_sent = self._parent_lost = False

    def serve(self) -> None:
        """Serve until all workers have disconnected."""
        while not self._done():
            for key, _ in self._selector.select(_TICK_SECONDS):
                key.data(key.fileobj)
            if self._judge is not None and self._verdict is None:
                self._decide(self._judge)

    def _done(self) -> bool:
        return (self._judge is not None or self._parent_lost) and not self._ranks

    def _lose_parent(self, parent: Any) -> None:
        """The first worker, which started this process, has exited."""
        self._selector.unregister(parent)
        self._parent_lost = True
        if self._judge is None:
            self._refuse_all(f"The first worker, {self._tasks[0]}, ended before all workers had joined.")

    def _accept(self, listener: socket.socket) -> None:
        connection = Connection(listener.accept()[0])
        connection.send(GREETING)
        self._ranks[connection] = None
        self._selector.register(connection, selectors.EVENT_READ, self._receive)

    def _receive(self, connection: Connection) -> None:
        try:
            messages = connection.receive(0)
            for message in messages or ():
                self._hear(connection, message)
        except (ValueError, KeyError, TypeError):  # not a worker of Replicax
            messages = None
        if messages is None and connection in self._ranks:
            self._lose(connection)

    def _hear(self, connection: Connection, message: dict[str, Any]) -> None:
        rank = self._ranks.get(connection)
        if rank is None:
            self._welcome(connection, message)
        elif self._judge is not None:
            self._judge.hear(rank, message, time.monotonic())
        elif message["kind"] == "timed out" and rank in self._present:
            self._announce_members()
            self._send_all({"kind": "timed out", "rank": rank})
            self._present.clear()

    def _lose(self, connection: Connection) -> None:
        rank = self._drop(connection)
        if rank is None:
            return
        if self._judge is not None:
            self._judge.lose(rank, time.monotonic())
            self._announce_members()
        elif self._present.pop(rank, None) is not None:
            self._refuse_all(
                f"{self._named(rank)} ended before all workers had joined. See its own output."
            )

    def _drop(self, connection: Connection) -> int | None:
        self._selector.unregister(connection)
        connection.close()
        return self._ranks.pop(connection)

    # Joining.

    def _welcome(self, connection: Connection, hello: dict[str, Any]) -> None:
        rank, tasks = hello["rank"], hello["tasks"]
        if tasks != self._tasks:
            self._refuse_different(connection, rank, tasks)
        elif rank in self._present:
            self._refuse_second(connection, hello)
        else:
            self._ranks[connection] = rank
            self._present[rank] = hello
            self._announce_members()
            if len(self._present) == len(self._tasks):
                self._start()

    def _refuse_different(self, connection: Connection, rank: int, tasks: list[str]) -> None:
        reason = (
            f"A process tried to join as rank {rank} of another cluster: it has the {len(tasks)} tasks "
            f"{', '.join(tasks)}, but the first worker has the {len(self._tasks)} tasks "
            f"{', '.join(self._tasks)}. Give all workers the same cluster."
        )
        self._refuse(connection, reason)
        if self._judge is None:
            self._refuse_all(reason)

    def _refuse_second(self, connection: Connection, hello: dict[str, Any]) -> None:
        first = self._present[hello["rank"]]
        reason = (
            f"Two processes claim to be {self._named(hello['rank'])}: process {first['pid']} on "
            f"{first['host']} and process {hello['pid']} on {hello['host']}. Give every worker its own "
            "task index."
        )
        self._refuse(connection, reason)
        if self._judge is None:
            self._refuse_all(reason)

    def _refuse(self, connection: Connection, reason: str) -> None:
        connection.send({"kind": "refused", "reason": reason})
        self._drop(connection)

    def _refuse_all(self, reason: str) -> None:
        self._present.clear()
        for connection in list(self._ranks):
            self._refuse(connection, reason)

    def _start(self) -> None:
        now = time.monotonic()
        try:
            address = self._start_service()
        except Exception as error:
            self._refuse_all(f"JAX's coordination service could not start: {error}")
            return
        self._judge = Judge(self._tasks, self._stuck_seconds, now)
        self._send_all({"kind": "joined", "service": address})

    def _named(self, rank: int) -> str:
        return f"rank {rank} ({self._tasks[rank]})"

    # Running.

    def _announce_members(self) -> None:
        ranks = sorted(rank for rank in self._ranks.values() if rank is not None)
        self._send_all({"kind": "present", "ranks": ranks})

    def _decide(self, judge: Judge) -> None:
        self._verdict = judge.decide(time.monotonic())
        if self._verdict is not None:
            self._send_all({"kind": "verdict", **dataclasses.asdict(self._verdict)})
        elif judge.wants_stacks and not self._stacks_sent:
            self._send_all({"kind": "send stacks"})
        self._stacks_sent = judge.wants_stacks

    def _send_all(self, message: dict[str, Any]) -> None:
        # Most recently heard from first: a send to a stopped process may block for seconds.
        joined = [connection for connection, rank in self._ranks.items() if rank is not None]
        for connection in sorted(joined, key=lambda c: c.heard, reverse=True):
            connection.send(message)
