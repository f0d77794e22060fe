"""`tf.compat.v1.distribute`: `replicax.compat.v1` under TensorFlow's name."""

from replicax.compat.v1 import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    InputContext,
    InputIterator,
    InputReplicationMode,
    MirroredStrategy,
    NcclAllReduce,
    OneDeviceStrategy,
    ReduceOp,
    ReductionToOneDevice,
    ReplicaContext,
    RunOptions,
    Strategy,
    StrategyExtended,
    experimental_set_strategy,
    get_loss_reduction,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from replicax.tf._missing import OF_DISTRIBUTE, refuse
from replicax.tf.compat.v1.distribute import experimental
from replicax.tf.distribute import cluster_resolver

__all__ = [
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputIterator",
    "InputReplicationMode",
    "MirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "cluster_resolver",
    "experimental",
    "experimental_set_strategy",
    "get_loss_reduction",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]

__getattr__ = refuse("tf.compat.v1.distribute", OF_DISTRIBUTE)
