"""Replicax: the `tf.distribute` programming model on JAX.

Write a training loop once, as if for one replica; a `Strategy` decides where its variables live, how its
replicas run and how they talk.
"""

from replicax.collectives import (
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from replicax.contexts import (
    ReplicaContext,
    get_replica_context,
    get_strategy,
    get_update_replica_id,
    has_strategy,
    in_cross_replica_context,
    set_strategy,
)
from replicax.contexts import set_strategy as experimental_set_strategy
from replicax.execution import Function, function
from replicax.strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    RunOptions,
    Strategy,
    StrategyExtended,
    ValueContext,
)
from replicax.topology import set_cpu_devices
from replicax.types import ReduceOp, VariableAggregation, VariableSynchronization
from replicax.values import DistributedValues, IndexedSlices, Mirrored, PerReplica
from replicax.variables import (
    AggregatingVariable,
    MirroredVariable,
    SyncOnReadVariable,
    Variable,
)

__all__ = [
    "AggregatingVariable",
    "CentralStorageStrategy",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "DistributedValues",
    "Function",
    "HierarchicalCopyAllReduce",
    "IndexedSlices",
    "Mirrored",
    "MirroredStrategy",
    "MirroredVariable",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "PerReplica",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "SyncOnReadVariable",
    "ValueContext",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "experimental_set_strategy",
    "function",
    "get_replica_context",
    "get_strategy",
    "get_update_replica_id",
    "has_strategy",
    "in_cross_replica_context",
    "set_cpu_devices",
    "set_strategy",
]
