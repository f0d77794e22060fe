"""Clusters: which processes train together, how each one finds its task, and how they join.

A `ClusterSpec` lists the tasks of a cluster. A `ClusterResolver` finds it, for example in the environment;
there is one class for each way of starting processes. Strategies for several hosts take a resolver.
"""

from replicax.cluster._bootstrap import Place, Task, find_place, join_cluster
from replicax.cluster._cloud import GCEClusterResolver, KubernetesClusterResolver
from replicax.cluster._cluster_def import ClusterDef, JobDef
from replicax.cluster._log import Collective, CollectiveLog, collective_log
from replicax.cluster._messages import exchange_between_processes
from replicax.cluster._resolver import ClusterResolver
from replicax.cluster._simple import SimpleClusterResolver
from replicax.cluster._slurm import SlurmClusterResolver
from replicax.cluster._spec import ClusterSpec
from replicax.cluster._tf_config import TFConfigClusterResolver
from replicax.cluster._tpu import (
    TPUClusterResolver,
    connect_to_cluster,
    initialize_tpu_system,
    shutdown_tpu_system,
    warn_of_stand_ins,
)
from replicax.cluster._union import UnionResolver
from replicax.cluster._union import UnionResolver as UnionClusterResolver

__all__ = [
    "ClusterDef",
    "ClusterResolver",
    "ClusterSpec",
    "Collective",
    "CollectiveLog",
    "GCEClusterResolver",
    "JobDef",
    "KubernetesClusterResolver",
    "Place",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "Task",
    "UnionClusterResolver",
    "UnionResolver",
    "collective_log",
    "connect_to_cluster",
    "exchange_between_processes",
    "find_place",
    "initialize_tpu_system",
    "join_cluster",
    "shutdown_tpu_system",
    "warn_of_stand_ins",
]
