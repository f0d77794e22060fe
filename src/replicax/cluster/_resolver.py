"""`ClusterResolver`: finds the cluster that a process belongs to, and the task of this process.

There is one subclass for each way of starting processes: environment variables, Slurm, a TPU. A resolver
only provides information. It starts nothing and connects to nothing.
"""

from __future__ import annotations

import abc
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax

from replicax.cluster._spec import ClusterSpec, integer, training_tasks
from replicax.errors import ClusterError
from replicax.topology import device_name, parse_device_name, prepare_cpu_pool

__all__ = [
    "ClusterResolver",
    "checked_task_id",
    "count_accelerators",
    "master_url",
    "refuse_config_proto",
]


class ClusterResolver(abc.ABC):
    """Knows the tasks of a cluster, and the task of this process.

    Subclass it for a way of starting processes that Replicax does not know: define `cluster_spec` and
    `master`, and set `task_type` and `task_id`.

    >>> from replicax.cluster import ClusterResolver, ClusterSpec
    >>> class TwoHosts(ClusterResolver):
    ...     def cluster_spec(self):
    ...         return ClusterSpec({"worker": ["host0:2222", "host1:2222"]})
    ...     def master(self, task_type=None, task_id=None, rpc_layer=None):
    ...         return self.cluster_spec().task_address(task_type or "worker", task_id or 0)
    >>> resolver = TwoHosts()
    >>> resolver.task_type, resolver.task_id = "worker", 1
    >>> resolver.master()
    'host0:2222'
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """The jobs and tasks of the cluster; empty without a cluster."""

    @abc.abstractmethod
    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of a task, as a URL if there is an `rpc_layer`.

        Args:
            task_type: the job of the task.
            task_id: its index.
            rpc_layer: the protocol of the URL, such as "grpc".
        """

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: None = None
    ) -> Mapping[str, int]:
        """The number of accelerators of a task, by platform: `{"GPU": 4}`. CPU devices do not count.

        Counting them starts JAX, so join the cluster first. Then the devices of other tasks are known, too.

        Args:
            task_type: the job of the task; None means this process's.
            task_id: its index; None means this process's.
            config_proto: must be None; JAX has no sessions.

        Raises:
            ClusterError: the cluster has no such task, or this process has not joined its cluster.
        """
        refuse_config_proto(config_proto)
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if (job, index) == (self.task_type, self.task_id):
            return count_accelerators()
        return count_accelerators(self._process_of(str(job), -1 if index is None else index))

    def _process_of(self, job: str, index: int) -> int:
        spec = self.cluster_spec()
        spec.task_address(job, index)  # raises if the cluster has no such task
        tasks = training_tasks(spec)
        if jax.process_count() != len(tasks) or (job, index) not in tasks:
            raise ClusterError(
                f"num_accelerators: this process is task {self.task_id} of {self.task_type!r} and can "
                f"count only its own devices, not those of task {index} of {job!r}. Join the cluster "
                "first, by creating a MultiWorkerMirroredStrategy."
            )
        return tasks.index((job, index))

    @property
    def task_type(self) -> str | None:
        """The job of this process; None without a cluster."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = None if task_type is None else str(task_type)

    @property
    def task_id(self) -> int | None:
        """The index of this process in its job; None without a cluster."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = checked_task_id(task_id, f"{type(self).__name__}: task_id")

    @property
    def rpc_layer(self) -> str | None:
        """The protocol of the URLs that `master` returns, such as "grpc"."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str | None:
        """The environment that the cluster runs in: "" or "google"."""
        return ""


def master_url(address: str, rpc_layer: str | None) -> str:
    """The URL of `address`; just the address if there is no protocol."""
    return f"{rpc_layer}://{address}" if rpc_layer else address


def refuse_config_proto(config_proto: Any) -> None:
    """Raise for the options of a TensorFlow session."""
    if config_proto is not None:
        raise TypeError(
            "num_accelerators(config_proto=...) is for TensorFlow sessions, which do not exist in JAX; got "
            f"{config_proto!r}. Leave it out."
        )


def checked_task_id(task_id: Any, where: str) -> int | None:
    """Convert a task's index to an int, even if it is given as text or as 1.0; None stays None."""
    if task_id is None:
        return None
    number = integer(task_id)
    if number is None:
        raise ClusterError(f"{where} must be an integer, 0 or more; got {task_id!r}.")
    return number


def count_accelerators(process: int | None = None) -> dict[str, int]:
    """The number of accelerators of a process, by platform; None means this process."""
    prepare_cpu_pool()
    devices = (
        jax.local_devices()
        if process is None
        else [device for device in jax.devices() if device.process_index == process]
    )
    counts: dict[str, int] = defaultdict(int)
    for device in devices:
        platform = parse_device_name(device_name(device)).platform
        if platform != "CPU":
            counts[platform] += 1
    return counts
