"""`UnionResolver`: combines several resolvers into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from replicax.cluster._resolver import ClusterResolver, master_url
from replicax.cluster._spec import ClusterSpec
from replicax.errors import ClusterError, OverlappingTasksError

__all__ = ["UnionResolver"]


@final
class UnionResolver(ClusterResolver):
    """The union of several resolvers' clusters; everything else comes from the first resolver.

    If several clusters have the same job, its tasks are concatenated. If the indices of that job have gaps
    in any of them, all tasks keep their indices.

    Args:
        cluster_resolvers: the resolvers, at least one.
        task_type: the job of this process; None asks the first resolver.
        task_id: its index; None asks the first resolver.
        rpc_layer: the protocol of the URLs that `master` returns; None asks the first resolver.

    Raises:
        ClusterError: no resolver was given.
        TypeError: an argument is not a resolver.

    >>> from replicax.cluster import ClusterSpec, SimpleClusterResolver, UnionResolver
    >>> workers = SimpleClusterResolver(ClusterSpec({"worker": ["host0:1"]}))
    >>> more = SimpleClusterResolver(ClusterSpec({"worker": ["host1:1"], "evaluator": ["host2:1"]}))
    >>> UnionResolver(workers, more).cluster_spec()
    ClusterSpec({'worker': ['host0:1', 'host1:1'], 'evaluator': ['host2:1']})
    """

    def __init__(
        self,
        *cluster_resolvers: ClusterResolver,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not cluster_resolvers:
            raise ClusterError("UnionResolver takes one or more resolvers, got none.")
        for resolver in cluster_resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise TypeError(
                    f"UnionResolver takes ClusterResolvers, got {resolver!r} of type "
                    f"{type(resolver).__name__}. List them as UnionResolver(a, b)."
                )
        first = cluster_resolvers[0]
        self._resolvers = cluster_resolvers
        self.task_type = first.task_type if task_type is None else task_type
        self.task_id = first.task_id if task_id is None else task_id
        self._rpc_layer = first.rpc_layer if rpc_layer is None else rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """The union of all clusters.

        Raises:
            OverlappingTasksError: a job has gaps in its indices, and two of its tasks have the same index.
        """
        parts: dict[str, list[Any]] = {}
        for resolver in self._resolvers:
            for job, tasks in resolver.cluster_spec().as_dict().items():
                parts.setdefault(job, []).append(tasks)
        return ClusterSpec({job: _concatenate(job, tasks) for job, tasks in parts.items()})

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of a task; without one, the first resolver's master.

        Raises:
            ClusterError: the cluster has no such task.
        """
        layer = rpc_layer or self._rpc_layer
        if task_type is not None and task_id is not None:
            return master_url(self.cluster_spec().task_address(task_type, task_id), layer)
        return self._resolvers[0].master(rpc_layer=layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: None = None
    ) -> Mapping[str, int]:
        """What the first resolver returns."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)

    @property
    def environment(self) -> str | None:
        """What the first resolver returns."""
        return self._resolvers[0].environment


def _concatenate(job: str, parts: list[Any]) -> list[str] | dict[int, str]:
    if all(isinstance(tasks, list) for tasks in parts):
        return [address for tasks in parts for address in tasks]
    joined: dict[int, str] = {}
    for tasks in parts:
        for index, address in tasks.items() if isinstance(tasks, dict) else enumerate(tasks):
            if index in joined:
                raise OverlappingTasksError(
                    f"UnionResolver: two clusters have a task {index} of the job {job!r}, at "
                    f"{joined[index]} and at {address}. Give them different indices."
                )
            joined[index] = address
    return joined
