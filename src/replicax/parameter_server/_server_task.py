"""One parameter server as the coordinator sees it: watched, saved, and replaced if it fails.

A replacement continues from the latest snapshot, which the coordinator holds, and is then told what the
server was told since (the journal). Recording and sending are one step, as is requesting a snapshot, so a
snapshot contains exactly what was recorded before it.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, final

from replicax.parameter_server._failures import is_dead, reason
from replicax.parameter_server._handles import Call, ServerHandle

if TYPE_CHECKING:
    from replicax.parameter_server._cluster import Cluster

__all__ = ["Saved", "ServerTask"]

_SECONDS_BETWEEN_PINGS = 0.5

_logger = logging.getLogger("replicax")


@final
@dataclasses.dataclass(frozen=True)
class Saved:
    """A snapshot of a server, and how many changes it had seen."""

    changes: int = -1
    state: Any = None
    time: float = 0.0
    """When it was requested: it contains every earlier change."""


@final
class ServerTask:
    """One server, and the thread that watches it.

    Args:
        cluster: its cluster.
        index: its number.
    """

    def __init__(self, cluster: Cluster, index: int) -> None:
        self._cluster, self._index = cluster, index
        self._lock = threading.Lock()
        self._journal: list[tuple[str, Any]] = []
        self.saved = Saved()
        self._failed_at: float | None = None
        self.actor = cluster.start_server(index)
        self.handle = ServerHandle(cluster.server_name(index), index, self.actor)
        cluster.watch(f"ps {index}", self._watch)

    def tell(self, method: str, *arguments: Any) -> Call:
        """Call a method that a replacement of this server must also execute."""
        with self._lock:
            self._journal.append((method, arguments))
            return self.handle.call(method, *arguments)

    def _watch(self) -> None:
        due, known = 0.0, None
        while not self._cluster.is_closed:
            actor = self.actor
            try:
                if actor is not known:
                    self._announce(self._cluster.await_start(actor))
                    known = actor
                if time.monotonic() >= due:
                    due = time.monotonic() + self._cluster.faults.snapshot_seconds
                    self._take_snapshot(actor)
                self._cluster.ping(actor)
            except Exception as error:
                if self._cluster.is_closed:
                    return
                self._recover(error)
            self._cluster.wait_closed(min(_SECONDS_BETWEEN_PINGS, max(0.0, due - time.monotonic())))

    def _announce(self, pid: int) -> None:
        if self._failed_at is None:
            _logger.info("ps %d runs in process %d.", self._index, pid)
        else:
            seconds = time.monotonic() - self._failed_at
            _logger.warning("ps %d was replaced after %.1f s, by process %d.", self._index, seconds, pid)

    def _take_snapshot(self, actor: Any) -> None:
        with self._lock:
            recorded, start = len(self._journal), time.monotonic()
            ref = actor.snapshot.remote(self.saved.changes)
        changes, state = self._cluster.get(ref, actor)
        with self._lock:
            self.saved = Saved(changes, self.saved.state if state is None else state, start)
            del self._journal[:recorded]

    def _recover(self, error: Exception) -> None:
        if is_dead(error):
            self._replace(error)
        else:  # out of memory, for example: its last snapshot is still there
            _logger.error("The state of ps %d could not be saved.", self._index, exc_info=error)

    def _replace(self, error: Exception) -> None:
        start, saved = time.monotonic(), self.saved
        age = "its first values" if saved.state is None else f"its snapshot, {start - saved.time:.1f} s old"
        _logger.warning("ps %d failed (%s); continuing from %s.", self._index, reason(error), age)
        self._cluster.kill(self.actor)
        with self._lock:  # what is told from now on is told to the replacement
            self.actor = self._cluster.start_server(self._index, saved.state, list(self._journal))
            self.handle.use(self.actor)
            self.saved = dataclasses.replace(saved, changes=-1)  # the replacement counts from 0
        self._failed_at = start
