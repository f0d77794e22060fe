"""`tf.distribute.cluster_resolver`: the members of a cluster; see `replicax.cluster`."""

from replicax.cluster import (
    ClusterResolver,
    GCEClusterResolver,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TPUClusterResolver,
    UnionResolver,
)

__all__ = [
    "ClusterResolver",
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionResolver",
]
