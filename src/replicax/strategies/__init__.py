"""The strategies, one file each."""

from replicax.strategies._answers import MIN_SHARD_BYTES, Answers, ShardSetting
from replicax.strategies._central_storage import CentralStorageStrategy
from replicax.strategies._default import DefaultStrategy
from replicax.strategies._extended import StrategyExtended
from replicax.strategies._mirrored import MirroredStrategy
from replicax.strategies._multi_worker import MultiWorkerMirroredStrategy
from replicax.strategies._one_device import OneDeviceStrategy
from replicax.strategies._run_options import RunOptions, ValueContext
from replicax.strategies._sharded import Setting, ShardedStrategy, sharded_answers
from replicax.strategies._strategy import Strategy, StrategyBase
from replicax.strategies._tpu import TPUStrategy

__all__ = [
    "MIN_SHARD_BYTES",
    "Answers",
    "CentralStorageStrategy",
    "DefaultStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "RunOptions",
    "Setting",
    "ShardSetting",
    "ShardedStrategy",
    "Strategy",
    "StrategyBase",
    "StrategyExtended",
    "TPUStrategy",
    "ValueContext",
    "sharded_answers",
]
