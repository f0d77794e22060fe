"""Input: datasets of any kind, split exactly over the replicas and prefetched in the background."""

from replicax.input._arrays import ArrayDataset, from_arrays
from replicax.input._batch import Batch, WholeBatch
from replicax.input._dataset import (
    DistributedDataset,
    Target,
    distribute_dataset,
    distribute_datasets_from_function,
)
from replicax.input._files import FileDataset, from_files
from replicax.input._grain import GrainReader
from replicax.input._host_batch import HostBatches
from replicax.input._iterator import DistributedIterator, InputStats, OptionalBatch
from replicax.input._options import AutoShardPolicy, InputContext, InputOptions, InputReplicationMode
from replicax.input._pipeline import Pipeline
from replicax.input._plan import InputPlan, PipelinePlan
from replicax.input._source import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    GivesSource,
    NoFiles,
    Reader,
    Source,
)

__all__ = [
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "ArrayDataset",
    "AutoShardPolicy",
    "Batch",
    "DistributedDataset",
    "DistributedIterator",
    "FileDataset",
    "GivesSource",
    "GrainReader",
    "HostBatches",
    "InputContext",
    "InputOptions",
    "InputPlan",
    "InputReplicationMode",
    "InputStats",
    "NoFiles",
    "OptionalBatch",
    "Pipeline",
    "PipelinePlan",
    "Reader",
    "Source",
    "Target",
    "WholeBatch",
    "distribute_dataset",
    "distribute_datasets_from_function",
    "from_arrays",
    "from_files",
]
