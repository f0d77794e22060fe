"""Variables: state that a strategy places on its devices, and keeps equal or combines when it is read."""

from replicax.variables._copy import VariableCopy
from replicax.variables._creation import NewVariable, awaiting_values, prepare_variable
from replicax.variables._divided import Divided
from replicax.variables._frames import (
    EAGER,
    Cell,
    Deferred,
    EagerFrame,
    Frame,
    RecordingFrame,
    Sending,
    current_frame,
    journal,
    use_frame,
)
from replicax.variables._kinds import (
    AggregatingVariable,
    MirroredVariable,
    ShardedVariable,
    SyncOnReadVariable,
)
from replicax.variables._layout import MAX_SPLIT_AXES, Layout
from replicax.variables._memory import Memory, VariableKind, bytes_on_device, kind_of
from replicax.variables._on_servers import OnServers
from replicax.variables._one_device import Central, OneDevice
from replicax.variables._out_of_memory import (
    advise,
    creating_state,
    is_out_of_memory,
    out_of_memory_in_step,
)
from replicax.variables._partition import NO_RULES, PartitionRules, check_partition
from replicax.variables._partitioned import Partitioned
from replicax.variables._partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)
from replicax.variables._per_replica import OnePerReplica
from replicax.variables._readable import is_variable
from replicax.variables._recorded import watched_by
from replicax.variables._replicated import Replicated
from replicax.variables._rows import HasRows
from replicax.variables._servers import Servers
from replicax.variables._sharded import Shard, Sharded, axis_to_shard
from replicax.variables._spec import VariableSpec
from replicax.variables._store import Places, Store, exclusive
from replicax.variables._table import Table, padded_rows, row_numbers
from replicax.variables._traced_value import TracedValue, traced_results
from replicax.variables._variable import Variable
from replicax.variables._writes import METHODS, Method, Write

__all__ = [
    "EAGER",
    "METHODS",
    "MAX_SPLIT_AXES",
    "NO_RULES",
    "AggregatingVariable",
    "Cell",
    "Central",
    "Deferred",
    "Divided",
    "EagerFrame",
    "FixedShardsPartitioner",
    "Frame",
    "HasRows",
    "Layout",
    "MaxSizePartitioner",
    "Memory",
    "MinSizePartitioner",
    "MirroredVariable",
    "NewVariable",
    "Method",
    "OnServers",
    "OneDevice",
    "OnePerReplica",
    "PartitionRules",
    "Partitioned",
    "Partitioner",
    "Places",
    "RecordingFrame",
    "Replicated",
    "Sending",
    "Servers",
    "Shard",
    "Sharded",
    "ShardedVariable",
    "Store",
    "exclusive",
    "SyncOnReadVariable",
    "Table",
    "TracedValue",
    "Variable",
    "VariableCopy",
    "VariableKind",
    "VariableSpec",
    "Write",
    "advise",
    "awaiting_values",
    "axis_to_shard",
    "bytes_on_device",
    "check_partition",
    "creating_state",
    "current_frame",
    "is_out_of_memory",
    "is_variable",
    "journal",
    "kind_of",
    "out_of_memory_in_step",
    "padded_rows",
    "prepare_variable",
    "row_numbers",
    "traced_results",
    "use_frame",
    "watched_by",
]
