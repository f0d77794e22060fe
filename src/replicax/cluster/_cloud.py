"""Resolvers for clouds that Replicax does not support; their errors say what to use instead."""

from __future__ import annotations

from typing import Any

from replicax.cluster._resolver import ClusterResolver

__all__ = ["GCEClusterResolver", "KubernetesClusterResolver"]


class KubernetesClusterResolver(ClusterResolver):
    """Not supported: would ask the Kubernetes API. Set TF_CONFIG in the manifest of the pods instead.

    >>> from replicax.cluster import KubernetesClusterResolver
    >>> KubernetesClusterResolver()
    Traceback (most recent call last):
        ...
    NotImplementedError: KubernetesClusterResolver would ask the Kubernetes API for the pods, ...
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> KubernetesClusterResolver:
        """Raise `NotImplementedError`."""
        raise NotImplementedError(
            "KubernetesClusterResolver would ask the Kubernetes API for the pods, which Replicax does not "
            f"do. {_INSTEAD}"
        )


class GCEClusterResolver(ClusterResolver):
    """Not supported: would ask Google Compute Engine. Set TF_CONFIG when the machines start instead.

    >>> from replicax.cluster import GCEClusterResolver
    >>> GCEClusterResolver("my-project", "us-east1-b", "my-group", 2222)
    Traceback (most recent call last):
        ...
    NotImplementedError: GCEClusterResolver would ask Google Compute Engine for the machines, ...
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> GCEClusterResolver:
        """Raise `NotImplementedError`."""
        raise NotImplementedError(
            "GCEClusterResolver would ask Google Compute Engine for the machines, which Replicax does not "
            f"do. {_INSTEAD}"
        )


_INSTEAD = (
    "Set the environment variable TF_CONFIG for each process (operators such as Kubeflow's TFJob do), or "
    "pass a SimpleClusterResolver with the addresses."
)
