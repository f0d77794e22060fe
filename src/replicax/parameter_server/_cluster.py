"""The processes of a strategy with parameter servers: actors on Ray, watched and replaced.

A thread in the coordinator's process watches each task (`_server_task.py`, `_worker_task.py`). A process
that ends is noticed at once; one that is stopped or hangs, when it does not answer in time. Both are
replaced under the same name.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from replicax.cluster import ClusterSpec
from replicax.errors import ClusterError
from replicax.parameter_server._connection import Connection
from replicax.parameter_server._handles import Call
from replicax.parameter_server._ray import actor_options, library
from replicax.parameter_server._server_task import ServerTask

__all__ = ["Cluster", "ClusterSize", "FaultOptions"]

_logger = logging.getLogger("replicax")


@final
@dataclasses.dataclass(frozen=True)
class FaultOptions:
    """When a task counts as failed, and how often servers are saved.

    Args:
        snapshot_seconds: how often the state of each server is copied to the coordinator.
        heartbeat_timeout_seconds: how long a task may be silent before it is replaced.
        join_timeout_seconds: how long to wait for tasks that the user starts.
    """

    snapshot_seconds: float = 30.0
    heartbeat_timeout_seconds: float = 30.0
    join_timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or value <= 0:
                raise ClusterError(f"{field.name}={value!r}: pass a positive number of seconds.")


@final
@dataclasses.dataclass(frozen=True)
class ClusterSize:
    """The numbers of tasks, and what Ray reserves for each."""

    num_ps: int
    num_workers: int
    resources_per_ps: Mapping[str, float]
    resources_per_worker: Mapping[str, float]


@final
class Cluster:
    """The servers and workers of one strategy.

    Args:
        size: how many.
        address: of a Ray cluster; see `Connection`.
        spec: the tasks, if the user has named them.
        faults: when to replace tasks.
    """

    def __init__(
        self, size: ClusterSize, address: str | None, spec: ClusterSpec | None, faults: FaultOptions
    ) -> None:
        self.uid = uuid.uuid4().hex[:12]
        self.size, self.faults = size, faults
        self._closed = threading.Event()
        self._on_close: list[Callable[[], None]] = []
        self._connection = Connection(address, spec, faults.join_timeout_seconds)
        self._num_threads = self._connection.num_threads(size.num_ps + size.num_workers)
        self._indices = {
            "ps": _indices(spec, "ps", size.num_ps),
            "worker": _indices(spec, "worker", size.num_workers),
        }
        self.servers = [ServerTask(self, i) for i in range(size.num_ps)]

    def tell(self, server: int, method: str, *arguments: Any) -> Call:
        """Tell a server something that its replacements must also be told."""
        return self.servers[server].tell(method, *arguments)

    # Starting tasks.

    def start_server(self, index: int, *state: Any) -> Any:
        """Start server `index`; waits until one that has failed has given up its name."""
        from replicax.parameter_server._server import ParameterServer

        options = self._options("ps", index, self.size.resources_per_ps)
        kind = library().remote(concurrency_groups={"watch": 1})(ParameterServer)
        while True:
            try:
                return kind.options(name=self.server_name(index), **options).remote(
                    self._num_threads, *state
                )
            except ValueError:
                if self.wait_closed(0.1):
                    raise

    def start_worker(self, index: int) -> Any:
        """Start worker `index`, or a replacement for it."""
        from replicax.parameter_server._worker import Worker

        options = self._options("worker", index, self.size.resources_per_worker)
        kind = library().remote(concurrency_groups={"watch": 2})(Worker)
        names = [self.server_name(i) for i in range(self.size.num_ps)]
        return kind.options(**options).remote(self.uid, index, names, self._num_threads)

    def _options(self, job: str, index: int, resources: Mapping[str, float]) -> dict[str, Any]:
        task = job, self._indices[job][index]
        return actor_options(self._connection.resources(task, resources))

    def add_worker(self, task_index: int | None = None) -> Any:
        """Start one more worker, on the node of a task that has joined if `task_index` is given."""
        known = self._indices["worker"]
        known.append(max(known) + 1 if task_index is None else task_index)
        return self.start_worker(len(known) - 1)

    def new_workers(self) -> list[int]:
        """The indices of workers that have joined, and are not in use yet."""
        return [i for i in self._connection.joined_workers() if i not in self._indices["worker"]]

    def server_name(self, index: int) -> str:
        """The name by which Ray knows server `index` and its replacements."""
        return f"replicax/{self.uid}/ps{index}"

    # Watching them.

    def watch(self, name: str, run: Callable[[], None]) -> None:
        """Watch a task in a thread of its own."""

        def watch() -> None:
            try:
                run()
            except Exception:
                if not self.is_closed:
                    _logger.exception("%s is no longer watched, because of an internal error.", name)

        threading.Thread(target=watch, name=f"replicax {name}", daemon=True).start()

    def await_start(self, actor: Any) -> int:
        """Wait until the process of a new task has started; returns its process id."""
        return library().get(actor.ping.options(concurrency_group="watch").remote())

    def ping(self, actor: Any) -> int:
        """Raise unless a task answers in time; returns its process id."""
        ref = actor.ping.options(concurrency_group="watch").remote()
        return library().get(ref, timeout=self.faults.heartbeat_timeout_seconds)

    def get(self, ref: Any, actor: Any) -> Any:
        """The result of a call that may take long, as long as the task answers heartbeats meanwhile."""
        while not library().wait([ref], timeout=1.0)[0]:
            self.ping(actor)
        return library().get(ref)

    def kill(self, actor: Any) -> None:
        """End a task, whatever it is doing."""
        library().kill(actor, no_restart=True)

    # Ending them.

    @property
    def is_closed(self) -> bool:
        """Whether the tasks have been ended."""
        return self._closed.is_set()

    def wait_closed(self, seconds: float) -> bool:
        """Wait some time; returns whether the tasks have been ended."""
        return self._closed.wait(seconds)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call a function when the tasks are ended."""
        self._on_close.append(callback)

    def close(self, workers: Sequence[Any]) -> None:
        """End all servers and workers, and Ray if it was started for them."""
        if self._closed.is_set():
            return
        self._closed.set()
        for callback in self._on_close:
            callback()
        if library().is_initialized():
            for actor in (*workers, *(server.actor for server in self.servers)):
                self.kill(actor)
            self._connection.close()


def _indices(spec: ClusterSpec | None, job: str, count: int) -> list[int]:
    return spec.task_indices(job) if spec is not None else list(range(count))
