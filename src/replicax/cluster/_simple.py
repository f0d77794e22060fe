"""`SimpleClusterResolver`: a cluster that the program specifies itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from replicax.cluster._resolver import ClusterResolver, master_url, refuse_config_proto
from replicax.cluster._spec import ClusterSpec

__all__ = ["SimpleClusterResolver"]


@final
class SimpleClusterResolver(ClusterResolver):
    """A resolver that returns its arguments.

    Args:
        cluster_spec: the cluster.
        master: what `master()` returns without a task.
        task_type: the job of this process.
        task_id: its index in that job.
        environment: the environment that the cluster runs in.
        num_accelerators: the number of devices of each task, by platform, such as `{"GPU": 2}`; a strategy
            uses that many. None means all that JAX finds.
        rpc_layer: the protocol of the URLs that `master` returns.

    Raises:
        TypeError: `cluster_spec` is not a `ClusterSpec`, or `num_accelerators` is not a dict.
        ClusterError: `task_id` is not an integer.

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
        if not isinstance(cluster_spec, ClusterSpec):
            raise TypeError(
                f"SimpleClusterResolver takes a ClusterSpec, got {cluster_spec!r} of type "
                f"{type(cluster_spec).__name__}. Wrap a dict: ClusterSpec({{'worker': [...]}})."
            )
        self._cluster_spec = cluster_spec
        self._master = master
        if not isinstance(num_accelerators, Mapping | None):
            raise TypeError(
                "SimpleClusterResolver: num_accelerators must be a dict of numbers by platform, such as "
                f"{{'GPU': 8}}; got {num_accelerators!r}."
            )
        self.task_type, self.task_id = task_type, task_id
        self._environment = environment
        self._num_accelerators = dict(num_accelerators or {})
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """The constructor's argument."""
        return self._cluster_spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of a task; without one, the `master` of the constructor.

        Raises:
            ClusterError: the cluster has no such task.
        """
        address = self._master
        if task_type is not None and task_id is not None:
            address = self._cluster_spec.task_address(task_type, task_id)
        return master_url(address, rpc_layer or self._rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: None = None
    ) -> dict[str, int]:
        """The constructor's argument, for every task; empty by default."""
        refuse_config_proto(config_proto)
        return dict(self._num_accelerators)

    @property
    def environment(self) -> str:
        """The constructor's argument."""
        return self._environment
