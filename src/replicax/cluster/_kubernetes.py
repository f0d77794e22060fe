"""`KubernetesClusterResolver`: finds the pods of a cluster by their labels, with the Kubernetes API.

It needs the package `kubernetes` and permission to list pods. The pods of a single Job need neither: see
`_kubernetes_job.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, final

from replicax.cluster._own_address import index_of_own_address
from replicax.cluster._resolver import ClusterResolver, master_url
from replicax.cluster._spec import ClusterSpec
from replicax.cluster._workers import format_address
from replicax.errors import NotInClusterError

__all__ = ["KubernetesClusterResolver", "KubernetesExecutableLocation"]

_DEFAULT_LABELS = {"worker": ["job-name=tensorflow"]}  # TensorFlow's


@final
class KubernetesExecutableLocation(enum.Enum):
    """Whether a program runs in a pod of the cluster, or elsewhere with a kubeconfig file.

    >>> from replicax.cluster import KubernetesExecutableLocation
    >>> KubernetesExecutableLocation.WITHIN_CLUSTER.value
    0
    """

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


@final
class KubernetesClusterResolver(ClusterResolver):
    """A resolver that asks Kubernetes for the running pods with given labels, on every call.

    The tasks of a job are its pods, ordered by name. The task of this process is the pod with this
    machine's address, unless you set `task_type` and `task_id`.

    Args:
        job_to_label_mapping: the label selectors of each job; None is TensorFlow's default,
            `{"worker": ["job-name=tensorflow"]}`.
        tf_server_port: the port of every task.
        rpc_layer: the protocol of the URLs that `master` returns.
        override_client: a `kubernetes.client.CoreV1Api`; None creates one.
        executable_location: where this program runs; it decides how to reach the API.

    Raises:
        ImportError: the package `kubernetes` is not installed.
        ValueError: `executable_location` is not a `KubernetesExecutableLocation`.

    >>> from types import SimpleNamespace as Object
    >>> pod = Object(metadata=Object(name="train-0"), status=Object(phase="Running", pod_ip="10.1.2.3"))
    >>> api = Object(list_pod_for_all_namespaces=lambda label_selector: Object(items=[pod]))
    >>> from replicax.cluster import KubernetesClusterResolver
    >>> KubernetesClusterResolver({"worker": ["job-name=train"]}, override_client=api).cluster_spec()
    ClusterSpec({'worker': ['10.1.2.3:8470']})
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: KubernetesExecutableLocation = KubernetesExecutableLocation.WITHIN_CLUSTER,
    ) -> None:
        self._client = _client(executable_location) if override_client is None else override_client
        self._labels = _DEFAULT_LABELS if job_to_label_mapping is None else dict(job_to_label_mapping)
        self._port = tf_server_port
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """The addresses of the pods, by job.

        Raises:
            NotInClusterError: a pod is not running.
        """
        return ClusterSpec(
            {
                job: [self._address(pod) for selector in selectors for pod in self._pods(selector)]
                for job, selectors in self._labels.items()
            }
        )

    def _pods(self, selector: str) -> list[Any]:
        pods = self._client.list_pod_for_all_namespaces(label_selector=selector).items
        return sorted(pods, key=lambda pod: pod.metadata.name)

    def _address(self, pod: Any) -> str:
        if pod.status.phase != "Running":
            raise NotInClusterError(
                f"The pod {pod.metadata.name!r} is not running: its phase is {pod.status.phase!r}. Try "
                "again when all pods run."
            )
        return format_address(pod.status.pod_ip, self._port)

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of a task, by default of this one; "" if the task is unknown.

        Raises:
            ClusterError: the cluster has no such task.
        """
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None or index is None:
            return ""
        return master_url(self.cluster_spec().task_address(job, index), rpc_layer or self._rpc_layer)

    @property
    def task_type(self) -> str | None:
        """The job of this process; None if no pod has this machine's address."""
        return self._own()[0] if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        ClusterResolver.task_type.__set__(self, task_type)

    @property
    def task_id(self) -> int | None:
        """The index of this process in its job; None if no pod has this machine's address."""
        return self._own()[1] if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        ClusterResolver.task_id.__set__(self, task_id)

    def _own(self) -> tuple[str | None, int | None]:
        spec = self.cluster_spec()
        for job in spec.jobs:
            index = index_of_own_address([str(address) for address in spec.job_tasks(job)])
            if index is not None:
                return job, index
        return None, None


def _client(location: KubernetesExecutableLocation) -> Any:
    if not isinstance(location, KubernetesExecutableLocation):
        raise ValueError(
            f"executable_location must be a KubernetesExecutableLocation, such as WITHIN_CLUSTER; got "
            f"{location!r}."
        )
    try:
        from kubernetes import client, config  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "KubernetesClusterResolver needs the package `kubernetes`: pip install kubernetes. For the "
            "pods of a single Job, KubernetesJobClusterResolver works without it."
        ) from error
    if location is KubernetesExecutableLocation.WITHIN_CLUSTER:
        config.load_incluster_config()
    else:
        config.load_kube_config()
    return client.CoreV1Api()
