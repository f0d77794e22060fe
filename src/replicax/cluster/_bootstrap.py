"""Finds this process's place in a cluster and joins the cluster with JAX.

Synchronous strategies run on the *training tasks*: the chief, if there is one, then the workers. Their
order gives JAX's process ids, and all connect to the coordinator at the address of the first. An evaluator
runs on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import jax

from replicax._jax import backends_are_initialized, connect_to_service
from replicax.cluster._coordinator import Rendezvous, start_coordinator, stop_coordinator
from replicax.cluster._listening import listen_at_own_address, refuse_encryption_settings
from replicax.cluster._notices import leave_sigterm_alone
from replicax.cluster._options import ClusterOptions
from replicax.cluster._resolver import ClusterResolver
from replicax.cluster._spec import ClusterSpec, training_tasks
from replicax.cluster._watchdog import watch
from replicax.errors import BackendStartedError, ClusterError

__all__ = ["Place", "Task", "find_place", "join_cluster"]


@final
@dataclass(frozen=True)
class Task:
    """One process of a cluster."""

    job: str
    index: int
    address: str

    def __str__(self) -> str:
        return f"{self.job} {self.index} ({self.address})"


@final
@dataclass(frozen=True)
class Place:
    """The tasks that train together, and the task of this process."""

    tasks: tuple[Task, ...]
    process_id: int

    @property
    def own(self) -> Task:
        """The task of this process."""
        return self.tasks[self.process_id]


def find_place(resolver: ClusterResolver) -> Place | None:
    """Find this process among the training tasks of the resolver's cluster; None without a cluster.

    Raises:
        ClusterError: the cluster has jobs that can't train together, or this process is not part of it.
    """
    spec = resolver.cluster_spec()
    if not spec:
        return None
    job, index = resolver.task_type, resolver.task_id
    if job is None or index is None:
        raise ClusterError(
            f"The cluster has the jobs {_listed(spec.jobs)}, but the task of this process is unknown: "
            f"task_type is {job!r} and task_id is {index!r}. Pass both to the resolver, or set them in "
            'TF_CONFIG: {"task": {"type": "worker", "index": 0}}.'
        )
    _check_jobs(spec, job)
    if job == "evaluator":
        return Place((Task(job, index, "separate"),), 0)
    address = spec.task_address(job, index)
    tasks = _training_tasks(spec)
    return Place(tasks, tasks.index(Task(job, index, address)))


def _check_jobs(spec: ClusterSpec, own_job: str) -> None:
    if own_job == "ps":
        raise ClusterError(
            "This process is a 'ps' task, a parameter server, which synchronous strategies do not use. Do "
            "not start such processes; the workers train without them."
        )
    for job in dict.fromkeys([own_job, *spec.jobs]):
        if job not in ("chief", "worker", "evaluator", "ps"):
            raise ClusterError(
                f"The cluster has a job {job!r}, but synchronous strategies support only 'chief', 'worker' "
                "and 'evaluator'. Rename the job, or leave it out of the cluster."
            )
    for job in ("chief", "evaluator"):
        if job in spec.jobs and spec.num_tasks(job) > 1:
            raise ClusterError(
                f"A cluster can have only one {job}, but this one has {spec.num_tasks(job)}. List the "
                "others as workers, or leave them out."
            )


def _training_tasks(spec: ClusterSpec) -> tuple[Task, ...]:
    return tuple(Task(job, index, spec.task_address(job, index)) for job, index in training_tasks(spec))


def join_cluster(place: Place | None, options: ClusterOptions | None = None) -> None:
    """Connect JAX in this process with all tasks of `place`, which must all call this.

    Args:
        place: from `find_place`; None does nothing.
        options: how long to wait for the others.

    Raises:
        BackendStartedError: JAX's backend has already started in this process, without the others.
        ClusterError: JAX has joined another cluster, two processes have the same task, their clusters
            differ, or the first task's address can't be used.
        ClusterTimeoutError: not all tasks joined in time.
    """
    if jax.distributed.is_initialized():
        _prepare_cpu_collectives()
        if place is not None:
            _check_agreement(place)
    elif place is not None and len(place.tasks) > 1:
        _refuse_started_backend(place)
        _prepare_cpu_collectives()
        refuse_encryption_settings()
        listen_at_own_address(place.own.address)
        _join(place, ClusterOptions() if options is None else options)


def _prepare_cpu_collectives() -> None:
    """Select Gloo: without it, CPU devices of different processes can't communicate."""
    if not jax.config.values["jax_cpu_collectives_implementation"] and not backends_are_initialized():
        jax.config.update("jax_cpu_collectives_implementation", "gloo")


def _check_agreement(place: Place) -> None:
    num_processes, process_id = jax.process_count(), jax.process_index()
    if (num_processes, process_id) != (len(place.tasks), place.process_id):
        raise ClusterError(
            f"JAX already runs as process {process_id} of {num_processes}, but this process is "
            f"{place.own}, process {place.process_id} of the {len(place.tasks)} tasks "
            f"{_listed(place.tasks)}. Leave `jax.distributed.initialize` to the strategy, or call it with "
            "these numbers."
        )


def _refuse_started_backend(place: Place) -> None:
    if backends_are_initialized():
        raise BackendStartedError(
            f"{place.own} can't join its cluster: JAX has already started in this process, without the "
            "others. Create the strategy first, before any array, `jax.devices()` or other strategy."
        )


def _join(place: Place, options: ClusterOptions) -> None:
    address, tasks = _checked_address(place.tasks[0]), [str(task) for task in place.tasks]
    if place.process_id == 0:
        start_coordinator(address, tasks, options)
    try:
        connection, service = Rendezvous(
            address, place.process_id, tasks, options.start_timeout_seconds
        ).join()
    except BaseException:
        stop_coordinator()
        raise
    watch(
        connection, place.process_id, options
    )  # before JAX connects: a worker may die while JAX waits for the others
    connect_to_service(service, len(tasks), place.process_id, options.heartbeat_timeout_seconds)
    leave_sigterm_alone()


def _checked_address(task: Task) -> str:
    host, _, port = task.address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(
            f"All tasks connect to the address of {task.job} {task.index}, which must be 'host:port'; got "
            f"{task.address!r}."
        )
    return task.address


def _listed(things: Iterable[object]) -> str:
    return ", ".join(map(str, things))
