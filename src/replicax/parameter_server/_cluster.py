"""The processes of a strategy with parameter servers: actors on Ray, watched and replaced.

Each task has a thread in the coordinator's process that watches it. A process that ends is noticed at once,
one that is stopped or hangs when it does not answer in time; both are replaced under the same name. A
server continues from its latest snapshot, which the coordinator holds.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.parameter_server._handles import ServerHandle
from replicax.parameter_server._ray import library

__all__ = ["Cluster", "ClusterSize", "FaultOptions", "is_dead"]

_logger = logging.getLogger("replicax")


@final
@dataclasses.dataclass(frozen=True)
class FaultOptions:
    """When a task counts as failed, and how often servers are saved.

    Args:
        snapshot_seconds: how often the state of each server is copied to the coordinator.
        heartbeat_timeout_seconds: how long a task may be silent before it is replaced.
    """

    snapshot_seconds: float = 30.0
    heartbeat_timeout_seconds: float = 30.0

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
@dataclasses.dataclass(frozen=True)
class _Saved:
    """A snapshot of a server, and how many changes it had seen."""

    changes: int = -1
    state: Any = None
    time: float = 0.0


@final
class Cluster:
    """The servers and workers of one strategy.

    Args:
        size: how many.
        address: of a Ray cluster; None joins the one that is in use, or starts one on this machine.
        faults: when to replace tasks.
    """

    def __init__(self, size: ClusterSize, address: str | None, faults: FaultOptions) -> None:
        self.uid = uuid.uuid4().hex[:12]
        self.size, self.faults = size, faults
        self.has_coordinator = False
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._owns_ray = _connect(size, address)
        self.handles = [ServerHandle(self._server_name(i), i) for i in range(size.num_ps)]
        self._servers = [self._start_server(i) for i in range(size.num_ps)]
        self._snapshots: list[_Saved] = [_Saved()] * size.num_ps
        self._journals: list[list[tuple[str, Any]]] = [[] for _ in range(size.num_ps)]
        self._threads: list[threading.Thread] = []
        for i in range(size.num_ps):
            self.watch(f"ps {i}", lambda i=i: self._watch_server(i))

    def _server_name(self, index: int) -> str:
        return f"replicax/{self.uid}/ps{index}"

    # Servers.

    def _start_server(self, index: int, *state: Any) -> Any:
        from replicax.parameter_server._server import ParameterServer

        options = _actor_options(self.size.resources_per_ps)
        kind = library().remote(concurrency_groups={"watch": 1})(ParameterServer)
        return kind.options(name=self._server_name(index), **options).remote(*state)

    def record(self, server: int, method: str, arguments: Any) -> None:
        """Remember a call that a server which is restored must receive again."""
        with self._lock:
            self._journals[server].append((method, arguments))

    def _watch_server(self, index: int) -> None:
        due, started = 0.0, None
        while not self._closed.is_set():
            try:
                if started is not self._servers[index]:
                    self.await_start(self._servers[index])
                    started = self._servers[index]
                if time.monotonic() >= due:
                    due = time.monotonic() + self.faults.snapshot_seconds
                    self._take_snapshot(index)
                self.ping(self._servers[index])
            except Exception as error:
                if self._closed.is_set():
                    return
                if not is_dead(error):
                    raise
                self._replace_server(index, error)
            self._closed.wait(0.5)

    def _take_snapshot(self, index: int) -> None:
        with self._lock:
            recorded = len(self._journals[index])
        actor, saved = self._servers[index], self._snapshots[index]
        ref = actor.snapshot.remote(saved.changes)
        while not library().wait([ref], timeout=1.0)[0]:
            self.ping(actor)  # it may be busy for long, but must not be silent
        changes, state = library().get(ref)
        with self._lock:
            state = saved.state if state is None else state
            self._snapshots[index] = _Saved(changes, state, time.monotonic())
            del self._journals[index][:recorded]

    def _replace_server(self, index: int, error: Exception) -> None:
        start, saved = time.monotonic(), self._snapshots[index]
        age = "its first values" if saved.state is None else f"its snapshot, {start - saved.time:.1f} s old"
        _logger.warning("ps %d failed (%s); continuing from %s.", index, _reason(error), age)
        self._kill(self._servers[index])
        with self._lock:
            journal = list(self._journals[index])
        actor = self._retry_name(lambda: self._start_server(index, saved.state, journal))
        self._snapshots[index] = dataclasses.replace(saved, changes=-1)  # it counts from 0 again
        self._servers[index] = actor
        _logger.warning("ps %d was replaced after %.1f s.", index, time.monotonic() - start)

    def _retry_name(self, start: Callable[[], Any]) -> Any:
        """Ray frees the name of an actor some time after it has died."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return start()
            except ValueError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    # Workers.

    def start_worker(self, index: int) -> Any:
        """Start worker `index`, also in the place of one that has failed."""
        from replicax.parameter_server._worker import Worker

        options = _actor_options(self.size.resources_per_worker)
        kind = library().remote(concurrency_groups={"watch": 2})(Worker)
        names = [self._server_name(i) for i in range(self.size.num_ps)]
        return kind.options(**options).remote(self.uid, index, names)

    # All tasks.

    def watch(self, name: str, run: Callable[[], None]) -> None:
        """Watch a task in a thread of its own."""
        thread = threading.Thread(target=run, name=f"replicax {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def await_start(self, actor: Any) -> None:
        """Wait for a new task, however long its process takes to start; raise if it ends."""
        library().get(actor.ping.options(concurrency_group="watch").remote())

    def ping(self, actor: Any) -> int:
        """Raise unless a task answers in time; returns its process id."""
        ref = actor.ping.options(concurrency_group="watch").remote()
        return library().get(ref, timeout=self.faults.heartbeat_timeout_seconds)

    def kill(self, actor: Any) -> None:
        """End a task, whatever it is doing."""
        self._kill(actor)

    def _kill(self, actor: Any) -> None:
        library().kill(actor, no_restart=True)

    @property
    def is_closed(self) -> bool:
        """Whether the tasks have been ended."""
        return self._closed.is_set()

    def wait_closed(self, seconds: float) -> bool:
        """Wait some time; returns whether the tasks have been ended."""
        return self._closed.wait(seconds)

    def close(self, workers: Sequence[Any]) -> None:
        """End all servers and workers, and Ray if it was started for them."""
        if self._closed.is_set():
            return
        self._closed.set()
        if library().is_initialized():
            for actor in (*workers, *self._servers):
                self._kill(actor)
            if self._owns_ray:
                library().shutdown()


def is_dead(error: BaseException) -> bool:
    """Whether an error of Ray says that a task has ended, or does not answer."""
    exceptions = library().exceptions
    kinds = (exceptions.RayActorError, exceptions.GetTimeoutError, exceptions.ObjectLostError)
    return isinstance(error, kinds)


def _reason(error: BaseException) -> str:
    silent = isinstance(error, library().exceptions.GetTimeoutError)
    return "it does not answer" if silent else "its process has ended"


def _connect(size: ClusterSize, address: str | None) -> bool:
    """Connect to Ray; returns whether it was started for this strategy."""
    ray = library()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
        try:
            ray.init(address=address)
        except ConnectionError as error:
            raise ClusterTimeoutError(
                f"There is no Ray cluster at {address!r}. Start one with `ray start --head`, or leave out "
                "`address` to start one on this machine."
            ) from error
        return False
    needed = size.num_ps * size.resources_per_ps.get("CPU", 0)
    needed += size.num_workers * size.resources_per_worker.get("CPU", 0)
    cpus = max(os.cpu_count() or 1, int(needed + 0.999))
    # On loopback: other machines can't reach the cluster.
    ray.init("local", num_cpus=cpus, include_dashboard=False, _node_ip_address="127.0.0.1")
    return True


def _actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {named[key]: value for key, value in resources.items() if key in named}
    other = {key: value for key, value in resources.items() if key not in named}
    return {"num_cpus": 0, **options, "resources": other, "max_restarts": 0}
