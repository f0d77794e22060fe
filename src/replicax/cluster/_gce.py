"""`GCEClusterResolver`: the machines of a Google Compute Engine instance group, found with its API."""

from __future__ import annotations

from typing import Any, final

from replicax.cluster._own_address import index_of_own_address
from replicax.cluster._resolver import ClusterResolver, master_url
from replicax.cluster._spec import ClusterSpec
from replicax.cluster._workers import format_address
from replicax.errors import NotInClusterError

__all__ = ["GCEClusterResolver"]


@final
class GCEClusterResolver(ClusterResolver):
    """A resolver that asks Compute Engine for the running machines of an instance group, on every call.

    The tasks are the machines, ordered by address.

    Args:
        project: the project of the group.
        zone: its zone.
        instance_group: its name.
        port: the port of every task.
        task_type: the job that all machines belong to.
        task_id: the index of this machine; None finds it by this machine's address.
        rpc_layer: the protocol of the URLs that `master` returns.
        credentials: Google credentials; "default" uses those of the machine.
        service: a client of the API `compute` `v1`; None creates one with the credentials.

    Raises:
        ImportError: the package `google-api-python-client` is not installed.
        ClusterError: `task_id` is not an integer.

    >>> from types import SimpleNamespace as Object
    >>> def answer(result):
    ...     return Object(execute=lambda: result)
    >>> group = Object(listInstances=lambda **_: answer({"items": [{"instance": "zones/z/instances/vm1"}]}),
    ...     listInstances_next=lambda **_: None)
    >>> machines = Object(get=lambda **_: answer({"networkInterfaces": [{"networkIP": "10.1.2.3"}]}))
    >>> api = Object(instanceGroups=lambda: group, instances=lambda: machines)
    >>> from replicax.cluster import GCEClusterResolver
    >>> GCEClusterResolver("my-project", "us-east1-d", "my-group", 8470, service=api).cluster_spec()
    ClusterSpec({'worker': ['10.1.2.3:8470']})
    """

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int | None = 0,
        rpc_layer: str | None = "grpc",
        credentials: Any = "default",
        service: Any = None,
    ) -> None:
        self._project, self._zone, self._group, self._port = project, zone, instance_group, port
        self._service = _client(credentials) if service is None else service
        self._task_type, self._rpc_layer = task_type, rpc_layer
        self.task_id = task_id

    def cluster_spec(self) -> ClusterSpec:
        """The addresses of the running machines of the group.

        Raises:
            NotInClusterError: the group has no running machine.
        """
        addresses = sorted(format_address(self._ip(name), self._port) for name in self._machines())
        if not addresses:
            raise NotInClusterError(
                f"The instance group {self._group!r} in {self._zone} of the project {self._project!r} has "
                "no running machine. Start its machines, or check these names."
            )
        return ClusterSpec({str(self._task_type): addresses})

    def _machines(self) -> list[str]:
        groups, names = self._service.instanceGroups(), []
        request = groups.listInstances(
            project=self._project,
            zone=self._zone,
            instanceGroup=self._group,
            body={"instanceState": "RUNNING"},
            orderBy="name",
        )
        while request is not None:
            page = request.execute()
            names += [item["instance"].rpartition("/")[2] for item in page.get("items", ())]
            request = groups.listInstances_next(previous_request=request, previous_response=page)
        return names

    def _ip(self, name: str) -> str:
        request = self._service.instances().get(project=self._project, zone=self._zone, instance=name)
        return request.execute()["networkInterfaces"][0]["networkIP"]

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of a task, by default of this one.

        Raises:
            ClusterError: the cluster has no such task.
        """
        job = self._task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if index is None:
            return ""
        return master_url(self.cluster_spec().task_address(str(job), index), rpc_layer or self._rpc_layer)

    @property
    def task_type(self) -> str | None:
        """The job of the group; can't be changed."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        raise RuntimeError(
            f"task_type of a GCEClusterResolver can't be changed to {task_type!r}: all machines of the "
            f"group belong to {self._task_type!r}. Create another resolver."
        )

    @property
    def task_id(self) -> int | None:
        """The index of this machine; None if it is unknown."""
        if self._task_id is not None:
            return self._task_id
        spec = self.cluster_spec()
        return index_of_own_address([str(address) for address in spec.job_tasks(spec.jobs[0])])

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        ClusterResolver.task_id.__set__(self, task_id)


def _client(credentials: Any) -> Any:
    try:
        from googleapiclient import discovery  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "GCEClusterResolver needs Google's client library: pip install google-api-python-client. Or "
            "set TF_CONFIG when the machines start."
        ) from error
    if credentials == "default":
        return discovery.build("compute", "v1")
    return discovery.build("compute", "v1", credentials=credentials)
