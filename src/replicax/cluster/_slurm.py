"""A cluster of the tasks that Slurm's `srun` has started, read from the environment it gives them.

Tasks are numbered as Slurm ranks them: by default all of the first host, then all of the next ("block"),
or one of each host in turn ("cyclic"). Those of one host get ports one after the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from replicax._jax import backends_are_initialized
from replicax.cluster._hostlist import expand_counts, expand_hostlist
from replicax.cluster._resolver import ClusterResolver, count_accelerators, master_url, refuse_config_proto
from replicax.cluster._spec import ClusterSpec
from replicax.errors import BackendStartedError, ClusterError, NotInClusterError

__all__ = ["SlurmClusterResolver"]

_GPUS = re.compile(r"(?:[^:,]+:)*(\d+)")  # a number, or kinds and a number: "a100:4"


@final
@dataclass(frozen=True)
class _Task:
    """One rank: its host, and which one of that host's tasks it is."""

    host: str
    local_index: int


@final
class SlurmClusterResolver(ClusterResolver):
    """A resolver for processes that Slurm's `srun` has started.

    Args:
        jobs: how many tasks each job has, by name; None makes all tasks workers. Ranks are dealt to the
            jobs in the order of their names, so a chief comes first.
        port_base: the port of the first task of each host; the next one takes the next port.
        gpus_per_node: how many GPUs each host has for these tasks; None asks Slurm.
        gpus_per_task: how many of them each task uses; None divides them evenly.
        tasks_per_node: how many tasks run on each host; None asks Slurm.
        auto_set_gpu: show each task only its own GPUs, by CUDA_VISIBLE_DEVICES, which must happen before
            JAX starts. Nothing is changed where Slurm has already given each task its own, or without GPUs.
        rpc_layer: the protocol to put in front of addresses.

    Raises:
        NotInClusterError: Slurm has not started this process.
        ClusterError: there are more tasks or GPUs asked for than Slurm has given, or its variables are
            not what Slurm writes.

    >>> import os
    >>> os.environ |= {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4",
    ...     "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    >>> from replicax.cluster import SlurmClusterResolver
    >>> resolver = SlurmClusterResolver({"chief": 1, "worker": 3})
    >>> resolver.cluster_spec().as_dict()
    {'chief': ['node1:8888'], 'worker': ['node1:8889', 'node2:8888', 'node2:8889']}
    >>> resolver.get_task_info()
    ('worker', 1)
    >>> for name in [name for name in os.environ if name.startswith("SLURM_")]:
    ...     del os.environ[name]
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        """Read Slurm's variables, and choose this task's GPUs."""
        rank = _required_number("SLURM_PROCID")
        tasks, per_host = _all_tasks(tasks_per_node)
        if jobs is None:
            jobs = {"worker": _required_number("SLURM_STEP_NUM_TASKS")}
        self._ranges = _dealt(_checked_jobs(jobs), len(tasks))
        self._spec = ClusterSpec(
            {job: [_address(tasks[i], port_base) for i in ranks] for job, ranks in self._ranges.items()}
        )
        self._rpc_layer = rpc_layer
        for job, ranks in self._ranges.items():
            if rank in ranks:
                self._task_type, self._task_id = job, rank - ranks.start
        if self._task_type is None:
            raise ClusterError(
                f"Slurm ranks this process {rank}, but jobs={dict(jobs)} has places for "
                f"{sum(jobs.values())} tasks only. Start as many as there are."
            )
        self._gpus_per_task = _divided_gpus(gpus_per_node, gpus_per_task, max(per_host))
        if auto_set_gpu and self._gpus_per_task:
            _show_gpus(tasks[rank].local_index, self._gpus_per_task)

    def cluster_spec(self) -> ClusterSpec:
        """The tasks that Slurm has started, as the jobs they were dealt to."""
        return self._spec

    def get_task_info(self) -> tuple[str | None, int | None]:
        """The job of this process, and its index in it."""
        return self.task_type, self.task_id

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of a task, by default of this one; as a URL unless `rpc_layer` is "".

        Raises:
            ClusterError: there is no such task.
        """
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None or index is None:
            raise ClusterError("`task_type` and `task_id` of this resolver were set to None: name a task.")
        return master_url(
            self._spec.task_address(job, index), self.rpc_layer if rpc_layer is None else rpc_layer
        )

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: None = None
    ) -> dict[str, int]:
        """The GPUs of each task, which all have as many; what JAX finds if neither you nor Slurm told."""
        refuse_config_proto(config_proto)
        return count_accelerators() if self._gpus_per_task is None else {"GPU": self._gpus_per_task}


def _address(task: _Task, port_base: int) -> str:
    return f"{task.host}:{port_base + task.local_index}"


def _required(name: str, or_else: str = "") -> str:
    value = os.environ.get(name) or os.environ.get(or_else)
    if not value:
        raise NotInClusterError(
            f"The environment variable {name} is not set, so Slurm has not started this process as a task: "
            "use `srun`, or another resolver."
        )
    return value


def _required_number(name: str, or_else: str = "") -> int:
    value = _required(name, or_else)
    if not value.isdecimal():
        raise ClusterError(
            f"The environment variable {name} is a number under Slurm; here it is {value!r}."
        )
    return int(value)


def _all_tasks(tasks_per_node: int | None) -> tuple[list[_Task], list[int]]:
    """The tasks in the order of their ranks, and how many each host has."""
    hosts = expand_hostlist(_required("SLURM_STEP_NODELIST", "SLURM_NODELIST"))
    if tasks_per_node is None:
        counts = expand_counts(_required("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    else:
        counts = [_checked_number(tasks_per_node, "tasks_per_node", at_least=1)] * len(hosts)
    if len(counts) != len(hosts):
        raise ClusterError(
            f"Slurm names {len(hosts)} hosts, {', '.join(hosts)}, but numbers of tasks for {len(counts)}."
        )
    tasks = [_Task(host, i) for host, n in zip(hosts, counts, strict=True) for i in range(n)]
    distribution = os.environ.get("SLURM_DISTRIBUTION", "block").lower()
    if distribution.startswith("cyclic"):
        tasks.sort(key=lambda task: task.local_index)
    elif not distribution.startswith("block"):
        raise ClusterError(
            f"Slurm distributes these tasks by {distribution!r}, which does not tell the host of a rank. "
            "Use `srun --distribution=block` or `cyclic`."
        )
    return tasks, counts


def _checked_jobs(jobs: Any) -> dict[str, int]:
    if not isinstance(jobs, Mapping):
        raise TypeError(f"jobs is a dict from names to numbers of tasks, got {jobs!r}.")
    return {
        job: _checked_number(jobs[job], f"the number of tasks of the job {job!r}", at_least=1)
        for job in sorted(jobs)
    }


def _checked_number(number: Any, what: str, at_least: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < at_least:
        raise ClusterError(f"{what} is an integer, {at_least} or more; got {number!r}.")
    return number


def _dealt(jobs: Mapping[str, int], num_tasks: int) -> dict[str, range]:
    """The ranks of each job."""
    ranges, start = {}, 0
    for job, size in jobs.items():
        ranges[job] = range(start, start + size)
        start += size
    if start > num_tasks:
        raise NotInClusterError(
            f"jobs={dict(jobs)} needs {start} tasks, and Slurm has {num_tasks}. Ask for more with "
            "`srun --ntasks`, or for smaller jobs."
        )
    return ranges


def _divided_gpus(per_node: int | None, per_task: int | None, tasks_per_node: int) -> int | None:
    """How many GPUs each task has; None if nobody says."""
    if per_node is None:
        per_node = _gpus_in_environment("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
    if per_task is None:
        per_task = _gpus_in_environment("SLURM_GPUS_PER_TASK")
    for number, what in ((per_node, "gpus_per_node"), (per_task, "gpus_per_task")):
        if number is not None:
            _checked_number(number, what, at_least=0)
    if per_task is None:
        return None if per_node is None else per_node // tasks_per_node
    if per_node is not None and per_task * tasks_per_node > per_node:
        raise ClusterError(
            f"{tasks_per_node} tasks on a host with {per_task} GPUs each need "
            f"{per_task * tasks_per_node} GPUs, and a host has {per_node}."
        )
    return per_task


def _gpus_in_environment(*names: str) -> int | None:
    for name in names:
        value = os.environ.get(name)
        if value and (match := _GPUS.fullmatch(value)):
            return int(match[1])
    return None


def _show_gpus(local_index: int, num_gpus: int) -> None:
    """Let JAX see the GPUs of this task alone."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = local_index * num_gpus
    visible = list(map(str, range(first + num_gpus))) if shown is None else shown.split(",")
    if shown is not None and len(visible) == num_gpus:
        return  # they are this task's own already
    mine = visible[first:][:num_gpus]
    if len(mine) < num_gpus:
        raise ClusterError(
            f"Task {local_index} of this host is to have {num_gpus} GPUs, but CUDA_VISIBLE_DEVICES shows "
            f"{len(visible)} to all of them: {','.join(visible)}."
        )
    if backends_are_initialized():
        raise BackendStartedError(
            "SlurmClusterResolver chooses the GPUs of this task, but JAX has started with all of them. "
            "Make the resolver before JAX is first used, or pass auto_set_gpu=False."
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
