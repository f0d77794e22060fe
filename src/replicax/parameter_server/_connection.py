"""How the coordinator connects to Ray: to a cluster at an address, to tasks that join, or to its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import final

from replicax.cluster import ClusterSpec
from replicax.errors import ClusterTimeoutError
from replicax.launch import Guard
from replicax.parameter_server._joining import tasks_here
from replicax.parameter_server._nodes import (
    Node,
    Task,
    await_tasks,
    connect,
    head_of,
    resource_of,
    start_node,
)
from replicax.parameter_server._ray import LOOPBACK, library, on_loopback
from replicax.topology import num_cores

__all__ = ["Connection"]

_JOBS = ("ps", "worker")

_SETTINGS = {
    # Arrays up to this size are part of a message; larger ones pass through shared memory, which is slower.
    "max_direct_call_object_size": 1 << 20,
    # Keep no record of every call.
    "task_events_report_interval_ms": 0,
    # Ray's default is 15: on a busy machine, tasks would hardly run.
    "worker_niceness": 0,
}


@final
class Connection:
    """The connection of this process to Ray.

    Args:
        address: of a Ray cluster; None for RAY_ADDRESS, the cluster already in use, the tasks of `spec`, or
            a new cluster on this machine.
        spec: the tasks, if the user has named them.
        seconds: how long to wait for tasks that join.
    """

    def __init__(self, address: str | None, spec: ClusterSpec | None, seconds: float) -> None:
        self._owns_ray = False
        self._guard: Guard | None = None
        self._node: Node | None = None
        self._is_joined = self._is_local = False
        address = address or os.environ.get("RAY_ADDRESS")
        if library().is_initialized():
            return
        if address:
            _connect_to(address)
        elif spec is not None and (away := _tasks_away(spec)):
            self._join(spec, away, seconds)
        else:
            self._start()

    def _start(self) -> None:
        # These settings override Ray's environment variables, so leave out those that the user has set.
        settings = {name: value for name, value in _SETTINGS.items() if f"RAY_{name}" not in os.environ}
        with on_loopback():
            library().init(
                "local", include_dashboard=False, _node_ip_address=LOOPBACK, _system_config=settings
            )
        self._owns_ray = self._is_local = True

    def _join(self, spec: ClusterSpec, away: list[Task], seconds: float) -> None:
        head = head_of(spec)
        own = [("chief", 0)] if head[0] == "chief" else []
        here = sorted(tasks_here(spec))
        if own or here:
            self._guard = Guard().__enter__()
            self._node = start_node(spec, [*own, *here], self._guard, seconds)
            self._node.connect()
        else:
            connect(spec.task_address(*head), seconds)
        self._is_joined = self._owns_ray = True
        await_tasks(away, seconds)

    def resources(self, task: Task, wanted: Mapping[str, float]) -> dict[str, float]:
        """What the actor of a task asks for."""
        if self._is_joined:
            return {**wanted, resource_of(task): 1}
        if self._is_local:  # as many processes as the user asks for, whatever the number of CPUs
            return {name: amount for name, amount in wanted.items() if name != "CPU"}
        return dict(wanted)

    def num_threads(self, num_tasks: int) -> int | None:
        """How many threads a task computes with; None for one for each CPU.

        Tasks that were all started here share the CPUs of this machine. If each used all of them, they
        would only take turns.
        """
        return max(1, num_cores() // num_tasks) if self._is_local else None

    def joined_workers(self) -> list[int]:
        """The indices of the workers that have joined."""
        if not self._is_joined:
            return []
        prefix = resource_of(("worker", 0)).removesuffix("0")
        names = [name for name in library().cluster_resources() if name.startswith(prefix)]
        return sorted(int(name.removeprefix(prefix)) for name in names)

    def close(self) -> None:
        """Leave the cluster; it ends if it was started here."""
        if self._owns_ray:
            library().shutdown()
        if self._node is not None:
            self._node.end()
        if self._guard is not None:
            self._guard.__exit__(None, None, None)


def _tasks_away(spec: ClusterSpec) -> list[Task]:
    """The servers and workers that are processes of their own."""
    tasks = [(job, i) for job in _JOBS if job in spec.jobs for i in spec.task_indices(job)]
    here = tasks_here(spec)
    return [task for task in tasks if task not in here]


def _connect_to(address: str) -> None:
    try:
        library().init(address=address)
    except ConnectionError as error:
        raise ClusterTimeoutError(
            f"Found no Ray cluster at {address!r}. Start one with `ray start --head`, or leave out "
            "`address` to start one on this machine."
        ) from error
