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
from replicax.input import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    ArrayDataset,
    AutoShardPolicy,
    DistributedDataset,
    DistributedIterator,
    FileDataset,
    InputContext,
    InputOptions,
    InputPlan,
    InputReplicationMode,
    InputStats,
    OptionalBatch,
    PipelinePlan,
    from_arrays,
    from_files,
)
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
from replicax.values import (
    DistributedValues,
    IndexedSlices,
    Mirrored,
    PerReplica,
    PerReplicaSpec,
    TensorSpec,
)
from replicax.variables import (
    AggregatingVariable,
    MirroredVariable,
    SyncOnReadVariable,
    Variable,
)

__all__ = [
    "AggregatingVariable",
    "ArrayDataset",
    "AutoShardPolicy",
    "CentralStorageStrategy",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "FileDataset",
    "Function",
    "HierarchicalCopyAllReduce",
    "INFINITE_CARDINALITY",
    "IndexedSlices",
    "InputContext",
    "InputOptions",
    "InputPlan",
    "InputReplicationMode",
    "InputStats",
    "Mirrored",
    "MirroredStrategy",
    "MirroredVariable",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "OptionalBatch",
    "PerReplica",
    "PerReplicaSpec",
    "PipelinePlan",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "SyncOnReadVariable",
    "TensorSpec",
    "UNKNOWN_CARDINALITY",
    "ValueContext",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "experimental_set_strategy",
    "from_arrays",
    "from_files",
    "function",
    "get_replica_context",
    "get_strategy",
    "get_update_replica_id",
    "has_strategy",
    "in_cross_replica_context",
    "set_cpu_devices",
    "set_strategy",
]
