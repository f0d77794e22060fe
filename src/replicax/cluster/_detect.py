"""Detects the cluster of this process from its environment.

Only unambiguous evidence counts: variables that a launcher sets under its own name, in a job of several
processes. RANK and WORLD_SIZE alone, or a pod of a Kubernetes Job, may mean something else; such programs
must pass a resolver.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import jax

from replicax.cluster._jax_variables import JAXClusterResolver, has_jax_variables
from replicax.cluster._open_mpi import OpenMPIClusterResolver, started_by_open_mpi
from replicax.cluster._ray_train import RayTrainClusterResolver, runs_in_ray_train, runs_in_ray_worker
from replicax.cluster._resolver import ClusterResolver
from replicax.cluster._slurm import SlurmClusterResolver, started_by_slurm
from replicax.cluster._tf_config import TFConfigClusterResolver
from replicax.cluster._torchrun import TorchrunClusterResolver, started_by_torchrun

__all__ = ["detect_cluster"]


def detect_cluster(auto_set_gpu: bool = True) -> ClusterResolver | None:
    """The resolver for the way in which this process was started; None if it was started alone.

    `MultiWorkerMirroredStrategy()` uses it. It looks for, in this order: TF_CONFIG;
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID (Kubeflow); a Ray Train worker;
    `torchrun`; Open MPI's `mpirun` and Slurm's `srun` with several processes. If one launcher runs inside
    another, the inner one wins. Ray tasks and actors inherit variables from the process that started Ray,
    so only TF_CONFIG and JAX's variables count there.

    Args:
        auto_set_gpu: allow the resolver to set CUDA_VISIBLE_DEVICES, to divide a host's GPUs among its
            tasks.

    Returns:
        The resolver, or None. Also None if `jax.distributed` is already initialized, unless TF_CONFIG is
        set.

    Raises:
        ClusterError: there is a cluster, but it is not valid.

    >>> from unittest.mock import patch
    >>> from replicax.cluster import detect_cluster
    >>> detect_cluster() is None
    True
    >>> with patch.dict("os.environ", {"TF_CONFIG": '{"cluster": {"worker": ["host0:2222"]}}'}):
    ...     type(detect_cluster()).__name__
    'TFConfigClusterResolver'
    """
    if os.environ.get("TF_CONFIG", "").strip():
        return TFConfigClusterResolver()
    if jax.distributed.is_initialized():
        return None
    for is_here, make in _launchers(auto_set_gpu):
        if is_here():
            return make()
    return None


def _launchers(auto_set_gpu: bool) -> list[tuple[Callable[[], bool], Callable[[], ClusterResolver]]]:
    """A test and a resolver for each launcher; inner launchers come first."""
    return [
        (has_jax_variables, JAXClusterResolver),
        (runs_in_ray_train, RayTrainClusterResolver),
        (
            _not_in_ray(started_by_torchrun),
            lambda: TorchrunClusterResolver(auto_set_gpu=auto_set_gpu),
        ),
        (
            _not_in_ray(started_by_open_mpi),
            lambda: OpenMPIClusterResolver(auto_set_gpu=auto_set_gpu),
        ),
        (_not_in_ray(started_by_slurm), lambda: SlurmClusterResolver(auto_set_gpu=auto_set_gpu)),
    ]


def _not_in_ray(is_here: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: is_here() and not runs_in_ray_worker()
