"""`KubernetesJobClusterResolver`: the pods of an Indexed Job or a JobSet, from a pod's own environment.

A pod of an Indexed Job finds its index in JOB_COMPLETION_INDEX and at the end of its host name. With a
headless Service as `subdomain`, the pods have DNS names: `train-0.workers`, `train-1.workers`, ... (a
JobSet creates the Service). Only the number of pods is missing: it is an argument, or JAX's own detection
asks the Kubernetes API for it.
"""

from __future__ import annotations

import os
import socket
from typing import final

from replicax._jax import detect_kubernetes_job
from replicax.cluster._workers import WorkersResolver, format_address, pad_addresses, read_number
from replicax.errors import ClusterError, NotInClusterError

__all__ = ["KubernetesJobClusterResolver"]

_ADVICE = "Kubernetes sets it for the pods of a Job with `completionMode: Indexed`."


@final
class KubernetesJobClusterResolver(WorkersResolver):
    """A resolver for the pods of a Kubernetes Job with `completionMode: Indexed`, alone or in a JobSet.

    Args:
        num_workers: the number of pods, the Job's `parallelism`. None asks the Kubernetes API, as
            `jax.distributed.initialize` does; this needs the package `kubernetes`, for example from
            `jax[k8s]`, and a service account that may read pods, jobs and services.
        port: the port of every pod.
        rpc_layer: the protocol of the URLs that `master` returns.

    Raises:
        NotInClusterError: this process is not in a pod of an Indexed Job.
        ClusterError: the pod has no DNS name, or its index exceeds the number of pods.

    >>> from unittest.mock import patch
    >>> pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}
    >>> from replicax.cluster import KubernetesJobClusterResolver
    >>> with patch.dict("os.environ", pod), patch("socket.getfqdn", lambda: "train-1.workers.ml.svc"):
    ...     print(KubernetesJobClusterResolver(num_workers=2).cluster_spec())
    ClusterSpec({'worker': ['train-0.workers.ml.svc:8476', 'train-1.workers.ml.svc:8476']})
    """

    def __init__(
        self, num_workers: int | None = None, port: int = 8476, rpc_layer: str | None = None
    ) -> None:
        if "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise NotInClusterError(
                "The environment variable KUBERNETES_SERVICE_HOST is not set: this process does not run in "
                "a Kubernetes pod. Use another resolver."
            )
        index = read_number("JOB_COMPLETION_INDEX", _ADVICE)
        if num_workers is None:
            addresses = _ask_kubernetes(port)
        else:
            addresses = [format_address(host, port) for host in _hosts(index, num_workers)]
        super().__init__(addresses, index, rpc_layer)


def _hosts(index: int, num_workers: int) -> list[str]:
    name, _, domain = socket.getfqdn().partition(".")
    job, _, number = name.rpartition("-")
    if not domain or number != str(index):
        raise ClusterError(
            f"The pods of this Job can't reach each other: the name of this one is {socket.getfqdn()!r}, "
            f"and should end in '-{index}' and a domain. Add a headless Service (`clusterIP: None`) and "
            "name it as `subdomain` in the pod template of the Job; see examples/cluster."
        )
    return [f"{job}-{i}.{domain}" for i in range(num_workers)]


def _ask_kubernetes(port: int) -> list[str]:
    try:
        found = detect_kubernetes_job(port)
    except RuntimeError as error:
        raise ClusterError(
            f"KubernetesJobClusterResolver could not get the number of pods from Kubernetes: {error}\nPass "
            "num_workers instead: the Job's `parallelism`."
        ) from error
    if found is None:
        raise ClusterError(
            "KubernetesJobClusterResolver needs the number of pods. Pass num_workers, which is the Job's "
            "`parallelism`, or install the package that can ask Kubernetes for it: pip install 'jax[k8s]'."
        )
    return pad_addresses(*found)
