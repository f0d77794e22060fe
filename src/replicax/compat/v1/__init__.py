"""`tf.compat.v1.distribute` on Replicax: the strategies with their documented v1 API.

    from replicax.compat import v1

    strategy = v1.MirroredStrategy()
    iterator = strategy.make_dataset_iterator(dataset)
    strategy.experimental_run(replica_fn, iterator)

The strategies are those of `replicax` with the methods of version 1 added. Version 1 built a graph and ran
it in a session; here every call runs immediately. So `initialize()` starts a pass instead of returning an
operation, `run_op` is None, and results are returned rather than fetched with a session. Names that have a
successor warn once.
"""

from replicax.collectives import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from replicax.compat.v1._config import ConfigProto
from replicax.compat.v1._extended import StrategyExtended
from replicax.compat.v1._iterators import InputIterator
from replicax.compat.v1._loss_reduction import get_loss_reduction
from replicax.compat.v1._parameter_server import ParameterServerStrategy
from replicax.compat.v1._steps import MultiStepContext
from replicax.compat.v1._strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    TPUStrategy,
)
from replicax.contexts import (
    ReplicaContext,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from replicax.contexts import set_strategy as experimental_set_strategy
from replicax.input import InputContext, InputReplicationMode
from replicax.strategies import RunOptions
from replicax.types import ReduceOp

__all__ = [
    "CentralStorageStrategy",
    "ConfigProto",
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputIterator",
    "InputReplicationMode",
    "MirroredStrategy",
    "MultiStepContext",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "experimental_set_strategy",
    "get_loss_reduction",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
