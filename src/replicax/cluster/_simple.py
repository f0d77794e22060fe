"""A cluster that the program itself spells out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from replicax.cluster._resolver import ClusterResolver, checked_task_id, master_url, refuse_config_proto
from replicax.cluster._spec import ClusterSpec

__all__ = ["SimpleClusterResolver"]


@final
class SimpleClusterResolver(ClusterResolver):
    """A resolver that answers with what it was given.

    Args:
        cluster_spec: the cluster.
        master: what `master()` answers if no task is named.
        task_type: the job of this process.
        task_id: its index in that job.
        environment: what kind of place the cluster runs in.
        num_accelerators: how many devices each task has, by platform, such as `{"GPU": 2}`; a strategy
            uses that many of them. None leaves it to what JAX finds.
        rpc_layer: the protocol to put in front of addresses.

    Raises:
        TypeError: `cluster_spec` is not a `ClusterSpec`.
        ClusterError: `task_id` is not a number.

    >>> from replicax.cluster import ClusterSpec, SimpleClusterResolver
    >>> spec = ClusterSpec({"worker": ["host0:2222", "host1:2222"]})
    >>> resolver = SimpleClusterResolver(spec, task_type="worker", task_id=1)
    >>> resolver.master("worker", 0)
    'host0:2222'
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        """Keep the answers."""
        if not isinstance(cluster_spec, ClusterSpec):
            raise TypeError(
                f"SimpleClusterResolver takes a ClusterSpec, got {cluster_spec!r} of type "
                f"{type(cluster_spec).__name__}. Wrap a dict: ClusterSpec({{'worker': [...]}})."
            )
        self._cluster_spec = cluster_spec
        self._master = master
        self._task_type = task_type
        self._task_id = checked_task_id(task_id, "SimpleClusterResolver(task_id=...)")
        self._environment = environment
        self._num_accelerators = dict(num_accelerators or {})
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """The cluster that was given."""
        return self._cluster_spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of the task that is named, else the master that was given.

        Raises:
            ClusterError: there is no such task.
        """
        address = self._master
        if task_type is not None and task_id is not None:
            address = self._cluster_spec.task_address(task_type, task_id)
        return master_url(address, rpc_layer or self._rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: None = None
    ) -> dict[str, int]:
        """What was given, for every task; empty if nothing was."""
        refuse_config_proto(config_proto)
        return dict(self._num_accelerators)

    @property
    def environment(self) -> str:
        """What was given."""
        return self._environment
