"""Clusters: which processes train together, how each finds its task, how they join and who watches them.

A `ClusterSpec` lists the tasks of a cluster. A `ClusterResolver` finds the spec, for example in environment
variables; there is one class for each way of starting processes. Multi-worker strategies take a resolver.
While a cluster runs, a watchdog in each worker (`_watchdog.py`) reports to a coordinator
(`_coordinator_main.py`), which tells all workers when one has failed.
"""

from replicax.cluster._bootstrap import Place, Task, find_place, join_cluster
from replicax.cluster._cluster_def import ClusterDef, JobDef
from replicax.cluster._detect import detect_cluster
from replicax.cluster._gce import GCEClusterResolver
from replicax.cluster._jax_variables import JAXClusterResolver
from replicax.cluster._kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
from replicax.cluster._kubernetes_job import KubernetesJobClusterResolver
from replicax.cluster._log import Collective, CollectiveLog, Entry, collective_log
from replicax.cluster._messages import all_published, exchange_between_processes, publish, published
from replicax.cluster._open_mpi import OpenMPIClusterResolver
from replicax.cluster._options import ClusterOptions
from replicax.cluster._preemption_watcher import PreemptionWatcher
from replicax.cluster._raised import Raised
from replicax.cluster._ray_train import RayTrainClusterResolver
from replicax.cluster._resolver import ClusterResolver
from replicax.cluster._simple import SimpleClusterResolver
from replicax.cluster._slurm import SlurmClusterResolver
from replicax.cluster._spec import ClusterSpec
from replicax.cluster._stopping_point import StoppingPoint
from replicax.cluster._tf_config import TFConfigClusterResolver
from replicax.cluster._torchrun import TorchrunClusterResolver
from replicax.cluster._tpu import (
    TPUClusterResolver,
    TPUSystemMetadata,
    connect_to_cluster,
    initialize_tpu_system,
    shutdown_tpu_system,
    warn_of_stand_ins,
)
from replicax.cluster._union import UnionResolver
from replicax.cluster._union import UnionResolver as UnionClusterResolver
from replicax.cluster._watchdog import await_cause, worker_failure
from replicax.cluster._workers import UNKNOWN_ADDRESS

__all__ = [
    "UNKNOWN_ADDRESS",
    "ClusterDef",
    "ClusterOptions",
    "ClusterResolver",
    "ClusterSpec",
    "Collective",
    "CollectiveLog",
    "Entry",
    "GCEClusterResolver",
    "JAXClusterResolver",
    "JobDef",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "KubernetesJobClusterResolver",
    "OpenMPIClusterResolver",
    "Place",
    "PreemptionWatcher",
    "Raised",
    "RayTrainClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "StoppingPoint",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "TPUSystemMetadata",
    "Task",
    "TorchrunClusterResolver",
    "UnionClusterResolver",
    "UnionResolver",
    "await_cause",
    "collective_log",
    "connect_to_cluster",
    "detect_cluster",
    "all_published",
    "exchange_between_processes",
    "find_place",
    "initialize_tpu_system",
    "join_cluster",
    "publish",
    "published",
    "shutdown_tpu_system",
    "warn_of_stand_ins",
    "worker_failure",
]
