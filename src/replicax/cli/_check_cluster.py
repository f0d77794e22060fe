"""The cluster check: which cluster is detected, and how. It does not join the cluster."""

from __future__ import annotations

import os
import socket

from replicax.cli._check import Finding, failed, passed, skipped
from replicax.cluster import UNKNOWN_ADDRESS, ClusterResolver, Place, detect_cluster, find_place

__all__ = ["check_cluster"]


def check_cluster() -> Finding:
    """Check whether `MultiWorkerMirroredStrategy()` would find a cluster, and which task this is."""
    resolver = detect_cluster(auto_set_gpu=False)
    place = None if resolver is None else find_place(resolver)
    if resolver is None or place is None:
        return _without_cluster(resolver)
    unknown = [task.address for task in place.tasks if not _is_known(task.address)]
    if unknown and len(place.tasks) > 1:
        return failed(
            f"{_describe(resolver, place)}. The host of {', '.join(unknown)} can't be resolved",
            "Check the host names, and this machine's DNS settings.",
        )
    return passed(_describe(resolver, place))


def _describe(resolver: ClusterResolver, place: Place) -> str:
    return (
        f"{type(resolver).__name__}: this is {place.own}, process {place.process_id} of "
        f"{len(place.tasks)}; all connect to {place.tasks[0].address}"
    )


def _without_cluster(resolver: ClusterResolver | None) -> Finding:
    if resolver is not None:
        return skipped(f"{type(resolver).__name__} has no cluster: this process runs alone")
    for names, reason, advice in _DOUBTFUL:
        if all(name in os.environ for name in names):
            return skipped(f"{reason}: this process runs alone", advice)
    return skipped("no TF_CONFIG and no multi-process launcher: this process runs alone")


# Environments that may be a cluster, but that a strategy does not detect by itself.
_DOUBTFUL = (
    (
        ("RANK", "WORLD_SIZE", "MASTER_ADDR"),
        "RANK and WORLD_SIZE are set, but not by torchrun",
        "If they describe your workers, pass TorchrunClusterResolver() to the strategy.",
    ),
    (
        ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"),
        "a pod of an Indexed Job, which may be independent of the others",
        "If its pods train together, pass KubernetesJobClusterResolver(num_workers=...) to the strategy.",
    ),
    (
        ("SLURM_JOB_ID",),
        "in a Slurm job, but not as one of several tasks",
        "Start programs with `srun`, with several tasks (`--ntasks`).",
    ),
)


def _is_known(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]") or address
    try:
        return address == UNKNOWN_ADDRESS or bool(socket.getaddrinfo(host, None))
    except OSError:
        return False
