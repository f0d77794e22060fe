"""`SlurmClusterResolver`: the tasks that Slurm's `srun` started, from its environment variables.

Tasks are ordered by Slurm rank: by default all tasks of the first host, then all of the next ("block"), or
one from each host in turn ("cyclic"). The tasks of a host get consecutive ports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from replicax.cluster._gpus import set_visible_gpus, visible_gpus
from replicax.cluster._hostlist import expand_counts, expand_hostlist
from replicax.cluster._resolver import ClusterResolver, count_accelerators, master_url, refuse_config_proto
from replicax.cluster._spec import ClusterSpec, integer
from replicax.errors import ClusterError, NotInClusterError

__all__ = ["SlurmClusterResolver", "started_by_slurm"]

_GPUS = re.compile(r"(?:[^:,]+:)*(\d+)")  # a number, or kinds and a number: "a100:4"


def started_by_slurm() -> bool:
    """Whether `srun` started this process as one of several tasks; a batch script doesn't count."""
    return "SLURM_PROCID" in os.environ and os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"


@final
@dataclass(frozen=True)
class _Task:
    """One rank: its host, and its local index on that host."""

    host: str
    local_index: int


@final
class SlurmClusterResolver(ClusterResolver):
    """A resolver for processes started by Slurm's `srun`.

    Args:
        jobs: the number of tasks of each job, by name; None makes all tasks workers. Ranks are assigned to
            the jobs in alphabetical order, so a chief comes first.
        port_base: the port of the first task on each host; the next task gets the next port.
        gpus_per_node: the number of GPUs on each host for these tasks; None asks Slurm, then
            CUDA_VISIBLE_DEVICES.
        gpus_per_task: the number of GPUs of each task; None divides the host's GPUs evenly.
        tasks_per_node: the number of tasks on each host; None asks Slurm.
        auto_set_gpu: set CUDA_VISIBLE_DEVICES so that each task sees only its own GPUs; must happen before
            JAX starts. Does nothing if Slurm has already done so, or without GPUs. An empty
            CUDA_VISIBLE_DEVICES hides the GPUs, unless you pass their number.
        rpc_layer: the protocol of the URLs that `master` returns.

    Raises:
        NotInClusterError: Slurm did not start this process.
        ClusterError: more tasks or GPUs are requested than Slurm has allocated, or Slurm's environment
            variables are invalid.

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
        rank = _required_number("SLURM_PROCID")
        tasks, per_host = _all_tasks(tasks_per_node)
        if jobs is None:
            jobs = {"worker": _required_number("SLURM_STEP_NUM_TASKS")}
        self._ranges = _assign_ranks(_checked_jobs(jobs), len(tasks))
        self._spec = ClusterSpec(
            {job: [_address(tasks[i], port_base) for i in ranks] for job, ranks in self._ranges.items()}
        )
        self._rpc_layer = rpc_layer
        for job, ranks in self._ranges.items():
            if rank in ranks:
                self._task_type, self._task_id = job, rank - ranks.start
        if self._task_type is None:
            raise ClusterError(
                f"This process has the Slurm rank {rank}, but jobs={dict(jobs)} has only "
                f"{sum(jobs.values())} tasks. Start as many processes as there are tasks."
            )
        self._gpus_per_task = _count_gpus_per_task(gpus_per_node, gpus_per_task, max(per_host))
        if auto_set_gpu and self._gpus_per_task:
            _show_gpus(tasks[rank].local_index, self._gpus_per_task)

    def cluster_spec(self) -> ClusterSpec:
        """The tasks that Slurm started, by job."""
        return self._spec

    def get_task_info(self) -> tuple[str | None, int | None]:
        """The job of this process and its index in that job."""
        return self.task_type, self.task_id

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of a task, by default of this one, as a URL unless `rpc_layer` is "".

        Raises:
            ClusterError: the cluster has no such task.
        """
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None or index is None:
            raise ClusterError("`task_type` or `task_id` of this resolver was set to None: pass both.")
        return master_url(
            self._spec.task_address(job, index), self.rpc_layer if rpc_layer is None else rpc_layer
        )

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: None = None
    ) -> dict[str, int]:
        """The number of GPUs of each task; if neither you nor Slurm specified it, what JAX finds."""
        refuse_config_proto(config_proto)
        return count_accelerators() if self._gpus_per_task is None else {"GPU": self._gpus_per_task}


def _address(task: _Task, port_base: int) -> str:
    return f"{task.host}:{port_base + task.local_index}"


def _required(name: str, or_else: str = "") -> str:
    value = os.environ.get(name) or os.environ.get(or_else)
    if not value:
        raise NotInClusterError(
            f"The environment variable {name} is not set, so Slurm did not start this process as a task. "
            "Start it with `srun`, or use another resolver."
        )
    return value


def _required_number(name: str, or_else: str = "") -> int:
    value = _required(name, or_else)
    if not value.isdecimal():
        raise ClusterError(f"Slurm sets the environment variable {name} to a number, but it is {value!r}.")
    return int(value)


def _all_tasks(tasks_per_node: int | None) -> tuple[list[_Task], list[int]]:
    """The tasks by rank, and the number of tasks on each host."""
    hosts = expand_hostlist(_required("SLURM_STEP_NODELIST", "SLURM_NODELIST"))
    if tasks_per_node is None:
        counts = expand_counts(_required("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    else:
        counts = [_checked_number(tasks_per_node, "tasks_per_node", at_least=1)] * len(hosts)
    if len(counts) != len(hosts):
        raise ClusterError(
            f"Slurm lists {len(hosts)} hosts, {', '.join(hosts)}, but task counts for {len(counts)}. If "
            "all hosts have the same number of tasks, pass it as `tasks_per_node`."
        )
    tasks = [_Task(host, i) for host, n in zip(hosts, counts, strict=True) for i in range(n)]
    distribution = os.environ.get("SLURM_DISTRIBUTION", "block").lower()
    if distribution.startswith("cyclic"):
        tasks.sort(key=lambda task: task.local_index)
    elif not distribution.startswith("block"):
        raise ClusterError(
            f"Slurm distributed these tasks with {distribution!r}, so the host of each rank is unknown. "
            "Use `srun --distribution=block` or `cyclic`."
        )
    return tasks, counts


def _checked_jobs(jobs: Any) -> dict[str, int]:
    if not isinstance(jobs, Mapping):
        raise TypeError(f"jobs must be a dict from names to numbers of tasks, got {jobs!r}.")
    return {
        job: _checked_number(jobs[job], f"the number of tasks of the job {job!r}", at_least=1)
        for job in sorted(jobs)
    }


def _checked_number(number: Any, what: str, at_least: int) -> int:
    whole = None if isinstance(number, str | bytes) else integer(number)
    if whole is None or whole < at_least:
        raise ClusterError(f"{what} must be an integer, {at_least} or more; got {number!r}.")
    return whole


def _assign_ranks(jobs: Mapping[str, int], num_tasks: int) -> dict[str, range]:
    """The ranks of each job."""
    ranges, start = {}, 0
    for job, size in jobs.items():
        ranges[job] = range(start, start + size)
        start += size
    if start > num_tasks:
        raise NotInClusterError(
            f"jobs={dict(jobs)} needs {start} tasks, but Slurm has {num_tasks}. Request more with "
            "`srun --ntasks`, or make the jobs smaller."
        )
    return ranges


def _count_gpus_per_task(per_node: int | None, per_task: int | None, tasks_per_node: int) -> int | None:
    """The number of GPUs of each task; None if it is not specified."""
    for number, what in ((per_node, "gpus_per_node"), (per_task, "gpus_per_task")):
        if number is not None:
            _checked_number(number, what, at_least=0)
    if per_node is None and per_task is None and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return None  # the GPUs are hidden
    if per_node is None:
        per_node = _gpus_in_environment("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
    if per_task is None:
        per_task = _gpus_in_environment("SLURM_GPUS_PER_TASK")
    if per_task is None:
        return (
            _visible_gpus_per_task(tasks_per_node) if per_node is None else int(per_node) // tasks_per_node
        )
    if per_node is not None and per_task * tasks_per_node > per_node:
        raise ClusterError(
            f"{tasks_per_node} tasks on a host with {per_task} GPUs each need "
            f"{per_task * tasks_per_node} GPUs, but a host has {per_node}. Use fewer tasks or fewer GPUs "
            "per task."
        )
    return int(per_task)


def _gpus_in_environment(*names: str) -> int | None:
    for name in names:
        value = os.environ.get(name)
        if value and (match := _GPUS.fullmatch(value)):
            return int(match[1])
    return None


def _visible_gpus_per_task(tasks_per_node: int) -> int | None:
    """How many GPUs of CUDA_VISIBLE_DEVICES a task gets: all, if the list is for this task alone."""
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        return None
    shown = len(visible_gpus() or ())
    return shown // tasks_per_node or shown


def _show_gpus(local_index: int, num_gpus: int) -> None:
    """Make only this task's GPUs visible to JAX."""
    shown = visible_gpus() if os.environ.get("CUDA_VISIBLE_DEVICES") else None
    first = local_index * num_gpus
    visible = list(map(str, range(first + num_gpus))) if shown is None else shown
    if shown is not None and len(visible) == num_gpus:
        return  # Slurm has already chosen them
    mine = visible[first:][:num_gpus]
    if len(mine) < num_gpus:
        raise ClusterError(
            f"Task {local_index} of this host needs {num_gpus} GPUs of its own, but CUDA_VISIBLE_DEVICES "
            f"lists {len(visible)} for all tasks: {','.join(visible)}. Use fewer tasks or GPUs per task."
        )
    set_visible_gpus(mine, "SlurmClusterResolver")
