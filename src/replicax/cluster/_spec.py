"""`ClusterSpec`: the jobs of a cluster and the addresses of their tasks.

A *task* is one process. It has a type, which is the name of its *job* ("worker", "chief", ...), and an
index in that job. Indices are usually 0, 1, 2, ..., but may have gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from replicax.cluster._cluster_def import ClusterDef, JobDef
from replicax.errors import ClusterError

__all__ = ["ClusterSpec", "integer", "training_tasks"]


@final
class ClusterSpec:
    """The tasks of a cluster and their addresses.

    Args:
        cluster: for each job the list of its tasks' addresses, or a dict from a task's index to its
            address; or another `ClusterSpec`, or a `ClusterDef`. Indices may be strings, as in JSON.

    Raises:
        TypeError: `cluster` is something else.

    >>> from replicax.cluster import ClusterSpec
    >>> spec = ClusterSpec({"worker": ["host0:2222", "host1:2222"], "ps": {3: "host2:2222"}})
    >>> spec.num_tasks("worker")
    2
    >>> spec.task_address("ps", 3)
    'host2:2222'
    """

    def __init__(self, cluster: Mapping[str, Any] | ClusterSpec | ClusterDef) -> None:
        if isinstance(cluster, ClusterDef):
            cluster = {job.name: job.tasks for job in cluster.job}
        if isinstance(cluster, ClusterSpec):
            self._jobs = cluster._jobs
        elif isinstance(cluster, Mapping):
            self._jobs = {_checked_job(job): _index_tasks(job, tasks) for job, tasks in cluster.items()}
        else:
            raise TypeError(
                "ClusterSpec takes a dict from job names to lists of addresses, such as "
                f"{{'worker': ['host0:2222']}}; got {cluster!r} of type {type(cluster).__name__}."
            )

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            try:
                other = ClusterSpec(other)
            except TypeError:
                return False
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # equal to dicts, which have none

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"

    def as_dict(self) -> dict[str, Any]:
        """The jobs, each as a list of addresses, or as a dict from index to address if there are gaps.

        >>> from replicax.cluster import ClusterSpec
        >>> ClusterSpec({"worker": {1: "host1:1", 0: "host0:1"}, "ps": {5: "host5:1"}}).as_dict()
        {'worker': ['host0:1', 'host1:1'], 'ps': {5: 'host5:1'}}
        """
        return {
            job: list(tasks.values()) if tasks and max(tasks) + 1 == len(tasks) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def as_cluster_def(self) -> ClusterDef:
        """The cluster as a `ClusterDef`, with the jobs in alphabetical order as in TensorFlow.

        >>> from replicax.cluster import ClusterSpec
        >>> ClusterSpec({"worker": ["host0:1"]}).as_cluster_def().job[0].tasks
        {0: 'host0:1'}
        """
        return ClusterDef([JobDef(job, dict(self._jobs[job])) for job in sorted(self._jobs)])

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs.

        >>> from replicax.cluster import ClusterSpec
        >>> ClusterSpec({"chief": ["host0:1"], "worker": ["host1:1"]}).jobs
        ['chief', 'worker']
        """
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """The number of tasks of a job.

        Raises:
            ClusterError: the job does not exist.

        >>> from replicax.cluster import ClusterSpec
        >>> ClusterSpec({"worker": {0: "host0:1", 4: "host4:1"}}).num_tasks("worker")
        2
        """
        return len(self._tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The indices of a job's tasks, in order.

        Raises:
            ClusterError: the job does not exist.

        >>> from replicax.cluster import ClusterSpec
        >>> ClusterSpec({"worker": {4: "host4:1", 0: "host0:1"}}).task_indices("worker")
        [0, 4]
        """
        return list(self._tasks(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of one task.

        Raises:
            ClusterError: the job does not exist, or has no task with this index.

        >>> from replicax.cluster import ClusterSpec
        >>> ClusterSpec({"worker": ["host0:1", "host1:1"]}).task_address("worker", 1)
        'host1:1'
        """
        tasks = self._tasks(job_name)
        if task_index not in tasks:
            existing = f"It has {', '.join(map(str, tasks))}." if tasks else "It has no tasks."
            raise ClusterError(f"The job {job_name!r} has no task {task_index!r}. {existing}")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job's tasks, with None for missing indices.

        Raises:
            ClusterError: the job does not exist.

        >>> from replicax.cluster import ClusterSpec
        >>> ClusterSpec({"worker": {0: "host0:1", 2: "host2:1"}}).job_tasks("worker")
        ['host0:1', None, 'host2:1']
        """
        tasks = self._tasks(job_name)
        return [tasks.get(i) for i in range(max(tasks, default=-1) + 1)]

    def _tasks(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            existing = f"It has {', '.join(map(repr, self._jobs))}." if self._jobs else "It is empty."
            raise ClusterError(f"The cluster has no job {job_name!r}. {existing}")
        return self._jobs[job_name]


def training_tasks(spec: ClusterSpec) -> list[tuple[str, int]]:
    """The job and index of each training task, by JAX process id: the chief first."""
    return [(job, i) for job in ("chief", "worker") if job in spec.jobs for i in spec.task_indices(job)]


def integer(value: Any) -> int | None:
    """`value` as an int, if it is a whole number >= 0 of any type or as text; otherwise None."""
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
        return number if number >= 0 and (isinstance(value, str | bytes) or number == value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _checked_job(job: Any) -> str:
    name = _text(job)
    if not isinstance(name, str):
        raise TypeError(f"The name of a job must be a string, such as 'worker'; got {job!r}.")
    return name


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _index_tasks(job: str, tasks: Any) -> dict[int, str]:
    """The tasks by index, in order."""
    if isinstance(tasks, list | tuple):
        tasks = dict(enumerate(tasks))
    if not isinstance(tasks, Mapping):
        raise TypeError(
            f"The tasks of the job {job!r} must be a list of addresses, or a dict of addresses by index; "
            f"got {tasks!r}."
        )
    numbered: dict[int, str] = {}
    for key, address in tasks.items():
        index = _checked_index(job, key)
        if index in numbered:
            raise TypeError(f"The job {job!r} has two addresses for task {index}.")
        numbered[index] = _checked_address(job, index, address)
    return dict(sorted(numbered.items()))


def _checked_index(job: str, key: Any) -> int:
    index = integer(key)
    if index is None:
        raise TypeError(f"The index of a task of the job {job!r} must be an int >= 0, got {key!r}.")
    return index


def _checked_address(job: str, index: int, address: Any) -> str:
    text = _text(address)
    if not isinstance(text, str):
        raise TypeError(
            f"The address of task {index} of the job {job!r} must be a string, 'host:port'; got "
            f"{address!r}."
        )
    return text
