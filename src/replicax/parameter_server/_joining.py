"""`Server`: a process that is a worker or a parameter server of a cluster that the user starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, NoReturn, final

from replicax.cluster import ClusterDef, ClusterSpec
from replicax.errors import ClusterError
from replicax.launch import Guard
from replicax.parameter_server._nodes import Node, Task

__all__ = ["Server", "tasks_here"]

_here: dict[str, Task] = {}
"""The tasks of the servers in this process, by their addresses."""

_logger = logging.getLogger("replicax")


def tasks_here(spec: ClusterSpec) -> set[Task]:
    """The tasks of a cluster that are in this process."""
    found = ((job, i, spec.task_address(job, i)) for job in spec.jobs for i in spec.task_indices(job))
    return {(job, i) for job, i, address in found if _here.get(address) == (job, i)}


@final
class Server:
    """A task of a cluster: a worker or a parameter server, in a process that you start.

    In the process of a task, `Server(...).join()` joins the cluster and serves. In the coordinator's
    process, a server represents a task that the strategy starts on this machine.

    Args:
        server_or_cluster_def: the cluster: a `ClusterSpec`, or a dict from jobs to addresses. The address
            of the chief, or of ps 0 without a chief, must be reachable from all processes.
        job_name: "worker" or "ps".
        task_index: the index of the task in its job; None if the job has one task.
        protocol: None or "grpc".
        config: settings of a TensorFlow session; no effect.
        start: whether to start now, or by `start()`.

    Raises:
        ClusterError: the cluster has no such task.

    >>> from replicax.parameter_server import Server
    >>> server = Server({"worker": ["localhost:2222"], "ps": ["localhost:2223"]}, "worker", 0)
    >>> server.target
    'grpc://localhost:2222'
    """

    def __init__(
        self,
        server_or_cluster_def: ClusterSpec | ClusterDef | Mapping[str, Any],
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        """Find the task in the cluster."""
        if protocol not in (None, "grpc"):
            raise ClusterError(f"Server(protocol={protocol!r}): Ray uses gRPC; leave it out.")
        self._spec = ClusterSpec(server_or_cluster_def)
        self._task = _find_task(self._spec, job_name, task_index)
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """A server of a cluster with one worker, itself.

        >>> from replicax.parameter_server import Server
        >>> Server.create_local_server().target
        'grpc://localhost:0'
        """
        return Server({"worker": ["localhost:0"]}, "worker", 0, config=config, start=start)

    @property
    def target(self) -> str:
        """The address of the task, with its protocol."""
        return f"grpc://{self._spec.task_address(*self._task)}"

    @property
    def server_def(self) -> dict[str, Any]:
        """The cluster and the task."""
        return {"cluster": self._spec.as_dict(), "job_name": self._task[0], "task_index": self._task[1]}

    def start(self) -> None:
        """Register the task in this process."""
        _here[self._spec.task_address(*self._task)] = self._task

    def join(self) -> NoReturn:
        """Serve as this task until the process is ended.

        If the coordinator ends, and with it the cluster, the server joins the next cluster at that address,
        so a restarted coordinator finds its tasks.
        """
        self.start()
        name = f"{self._task[0]} {self._task[1]}"
        with Guard() as guard:
            while True:
                _logger.info("%s joins the cluster.", name)
                node = Node(self._spec, [self._task], guard)
                node.wait()
                message = "The Ray node of %s has ended (status %d); its log is %s."
                _logger.warning(message, name, node.end(), node.log)
                time.sleep(1.0)


def _find_task(spec: ClusterSpec, job_name: str | None, task_index: int | None) -> Task:
    if job_name is None and len(spec.jobs) == 1:
        (job_name,) = spec.jobs
    if job_name not in spec.jobs:
        raise ClusterError(f"Server(job_name={job_name!r}): the cluster has the jobs {spec.jobs}.")
    indices = spec.task_indices(job_name)
    if task_index is None and len(indices) == 1:
        (task_index,) = indices
    if task_index not in indices:
        raise ClusterError(
            f"Server(job_name={job_name!r}, task_index={task_index!r}): the job has the tasks {indices}."
        )
    return job_name, task_index
