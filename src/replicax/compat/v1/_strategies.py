"""The strategies, with the methods that only version 1 has."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, final

from replicax import strategies as core
from replicax.compat.v1._config import updated_config
from replicax.compat.v1._deprecation import deprecated
from replicax.compat.v1._extended import StrategyExtended, numpy_dataset
from replicax.compat.v1._iterators import InputIterator
from replicax.input import ArrayDataset, InputContext, InputReplicationMode
from replicax.types import ReduceOpLike

__all__ = [
    "CentralStorageStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "Strategy",
    "TPUStrategy",
]


class Strategy(core.Strategy):
    """A strategy with the surface of version 1; the base of all in this module.

    >>> from replicax.compat import v1
    >>> strategy = v1.OneDeviceStrategy("CPU:0")
    >>> isinstance(strategy, v1.Strategy), isinstance(strategy, rx.OneDeviceStrategy)
    (True, True)
    """

    @cached_property
    def extended(self) -> StrategyExtended:
        """The lower-level API, with what only version 1 has."""
        return StrategyExtended(self)

    def reduce(self, reduce_op: ReduceOpLike, value: Any, axis: Any = None) -> Any:
        """Combine a per-replica value into one array; by default element by element.

        >>> from replicax.compat import v1
        >>> strategy = v1.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.reduce("SUM", strategy.run(lambda: jnp.ones(2)))
        Array([2., 2.], dtype=float32)
        """
        return super().reduce(reduce_op, value, axis)

    @deprecated("strategy.distribute_dataset(dataset) and a loop over it")
    def make_dataset_iterator(self, dataset: Any) -> InputIterator:
        """An iterator over `dataset`, whose global batches are split over the replicas.

        >>> from replicax.compat import v1
        >>> strategy = v1.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> iterator = strategy.make_dataset_iterator([np.array([1, 2])])
        >>> iterator.get_next()
        PerReplica:{
          0: Array([1], dtype=int32),
          1: Array([2], dtype=int32)
        }
        """
        return InputIterator(self.distribute_dataset(dataset))

    @deprecated("strategy.distribute_datasets_from_function(dataset_fn)")
    def make_input_fn_iterator(
        self,
        input_fn: Callable[[InputContext], Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> InputIterator:
        """An iterator over datasets that `input_fn` makes, one for each process.

        Args:
            input_fn: called with an `InputContext`; returns a dataset whose batches are for one replica.
            replication_mode: PER_WORKER; version 1 knows no other.

        >>> from replicax.compat import v1
        >>> strategy = v1.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def input_fn(context):
        ...     return rx.from_arrays(np.arange(8)).batch(context.get_per_replica_batch_size(4))
        >>> strategy.experimental_run(lambda x: x.sum(), strategy.make_input_fn_iterator(input_fn))
        PerReplica:{
          0: Array(1, dtype=int32),
          1: Array(5, dtype=int32)
        }
        """
        if replication_mode is not InputReplicationMode.PER_WORKER:
            raise ValueError(
                f"make_input_fn_iterator(replication_mode={replication_mode!r}): here it is PER_WORKER. "
                "strategy.distribute_datasets_from_function takes PER_REPLICA, in its InputOptions."
            )
        return InputIterator(self.distribute_datasets_from_function(input_fn))

    @deprecated("strategy.run(fn, args=(batch,))")
    def experimental_run(self, fn: Callable[..., Any], input_iterator: InputIterator | None = None) -> Any:
        """Call `fn` once for each replica, with its part of the iterator's next batch.

        Args:
            fn: the replica function.
            input_iterator: from `make_dataset_iterator` or `make_input_fn_iterator`; without one, `fn` is
                called without arguments.

        >>> from replicax.compat import v1
        >>> strategy = v1.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.experimental_run(lambda: 7)
        7
        """
        args = () if input_iterator is None else (input_iterator.get_next(),)
        return self.run(fn, args)

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> ArrayDataset:
        """A dataset of the rows of arrays.

        Args:
            numpy_input: an array, or a structure of arrays with one row for each example.
            session: None. Version 1 kept the arrays in a session; here they stay where they are.

        >>> from replicax.compat import v1
        >>> strategy = v1.OneDeviceStrategy("CPU:0")
        >>> strategy.experimental_make_numpy_dataset(np.ones(10, np.float32))
        <ArrayDataset of float32[10], not batched>
        """
        return numpy_dataset(numpy_input, session)

    def update_config_proto(self, config_proto: Any) -> Any:
        """A copy of a session's settings, as this strategy needs them.

        There are no sessions here: the copy is for programs that hand it on to TensorFlow.
        """
        return updated_config(config_proto)


@final
class MirroredStrategy(Strategy, core.MirroredStrategy):
    """`rx.MirroredStrategy` with the surface of version 1.

    >>> from replicax.compat import v1
    >>> v1.MirroredStrategy(["CPU:0", "CPU:1"]).num_replicas_in_sync
    2
    """


@final
class OneDeviceStrategy(Strategy, core.OneDeviceStrategy):
    """`rx.OneDeviceStrategy` with the surface of version 1.

    >>> from replicax.compat import v1
    >>> v1.OneDeviceStrategy("CPU:0").num_replicas_in_sync
    1
    """


@final
class CentralStorageStrategy(Strategy, core.CentralStorageStrategy):
    """`rx.CentralStorageStrategy` with the surface of version 1.

    >>> from replicax.compat import v1
    >>> v1.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0").num_replicas_in_sync
    2
    """


@final
class MultiWorkerMirroredStrategy(Strategy, core.MultiWorkerMirroredStrategy):
    """`rx.MultiWorkerMirroredStrategy` with the surface of version 1.

    >>> from replicax.compat import v1
    >>> v1.MultiWorkerMirroredStrategy().extended.should_checkpoint
    True
    """


@final
class TPUStrategy(Strategy, core.TPUStrategy):
    """`rx.TPUStrategy` with the surface of version 1.

    >>> from replicax.compat import v1
    >>> issubclass(v1.TPUStrategy, rx.TPUStrategy)
    True
    """
