"""The strategies with the v1 API.

Each combines the answers of a core strategy (its devices, layouts and collectives) with the methods of
version 1. It is registered as a virtual subclass of the core strategy, so that `isinstance` works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, final

from replicax import strategies as core
from replicax.cluster import ClusterOptions, ClusterResolver, TPUClusterResolver
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.compat.v1._config import updated_config
from replicax.compat.v1._deprecation import deprecated
from replicax.compat.v1._extended import StrategyExtended, numpy_dataset
from replicax.compat.v1._iterators import InputIterator
from replicax.input import ArrayDataset, InputContext, InputReplicationMode
from replicax.strategies import MIN_SHARD_BYTES, Setting
from replicax.topology import REPLICA_AXIS
from replicax.tpu import DeviceAssignment
from replicax.types import Device, ReduceOpLike

__all__ = [
    "CentralStorageStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "Strategy",
    "TPUStrategy",
]


class Strategy(core.StrategyBase):
    """A strategy with the v1 API; the base of all strategies in this module.

    Args:
        strategy: the core strategy that decides about devices, layouts and collectives.

    >>> from replicax.compat import v1
    >>> strategy = v1.OneDeviceStrategy("CPU:0")
    >>> isinstance(strategy, v1.Strategy), isinstance(strategy, rx.OneDeviceStrategy)
    (True, True)
    """

    def __init__(self, strategy: core.Strategy) -> None:
        super().__init__(strategy.answers)

    @cached_property
    def extended(self) -> StrategyExtended:
        """The lower-level v1 API."""
        return StrategyExtended(self)

    def reduce(self, reduce_op: ReduceOpLike, value: Any, axis: Any = None) -> Any:
        """Reduce a per-replica value to one array; by default elementwise.

        >>> from replicax.compat import v1
        >>> strategy = v1.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.reduce("SUM", strategy.run(lambda: jnp.ones(2)))
        Array([2., 2.], dtype=float32)
        """
        return self._reduce(reduce_op, value, axis)

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
        """An iterator over the datasets that `input_fn` returns, one for each process.

        Args:
            input_fn: called with an `InputContext`; returns a dataset whose batches are for one replica.
            replication_mode: PER_WORKER, the only mode of version 1.

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
                f"make_input_fn_iterator(replication_mode={replication_mode!r}): version 1 has only "
                "PER_WORKER. For PER_REPLICA, use strategy.distribute_datasets_from_function."
            )
        return InputIterator(self.distribute_datasets_from_function(input_fn))

    @deprecated("strategy.run(fn, args=(batch,))")
    def experimental_run(self, fn: Callable[..., Any], input_iterator: InputIterator | None = None) -> Any:
        """Call `fn` on each replica with its part of the iterator's next batch.

        Args:
            fn: the replica function.
            input_iterator: from `make_dataset_iterator` or `make_input_fn_iterator`; None calls `fn`
                without arguments.

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
            numpy_input: an array, or a structure of arrays, with one row per example.
            session: must be None; Replicax has no sessions.

        >>> from replicax.compat import v1
        >>> strategy = v1.OneDeviceStrategy("CPU:0")
        >>> strategy.experimental_make_numpy_dataset(np.ones(10, np.float32))
        <ArrayDataset of float32[10], not batched>
        """
        return numpy_dataset(numpy_input, session)

    def update_config_proto(self, config_proto: Any) -> Any:
        """A copy of a session's settings, adapted to this strategy.

        Replicax has no sessions; this is for programs that pass the copy on to TensorFlow.
        """
        return updated_config(config_proto)


@core.MirroredStrategy.register
@final
class MirroredStrategy(Strategy):
    """`rx.MirroredStrategy` with the v1 API; it takes the same arguments.

    >>> from replicax.compat import v1
    >>> v1.MirroredStrategy(["CPU:0", "CPU:1"]).num_replicas_in_sync
    2
    """

    def __init__(
        self,
        devices: Sequence[str | Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        *,
        logical_devices: int = 1,
        partition_rules: Mapping[str, Sequence[int]] | None = None,
        axis_name: str = REPLICA_AXIS,
    ) -> None:
        super().__init__(
            core.MirroredStrategy(
                devices,
                cross_device_ops,
                logical_devices=logical_devices,
                partition_rules=partition_rules,
                axis_name=axis_name,
            )
        )


@core.OneDeviceStrategy.register
@final
class OneDeviceStrategy(Strategy):
    """`rx.OneDeviceStrategy` with the v1 API; it takes the same arguments.

    >>> from replicax.compat import v1
    >>> v1.OneDeviceStrategy("CPU:0").num_replicas_in_sync
    1
    """

    def __init__(self, device: str | Device, *, axis_name: str = REPLICA_AXIS) -> None:
        super().__init__(core.OneDeviceStrategy(device, axis_name=axis_name))


@core.CentralStorageStrategy.register
@final
class CentralStorageStrategy(Strategy):
    """`rx.CentralStorageStrategy` with the v1 API; it takes the same arguments.

    >>> from replicax.compat import v1
    >>> v1.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0").num_replicas_in_sync
    2
    """

    def __init__(
        self,
        compute_devices: Sequence[str | Device] | None = None,
        parameter_device: str | Device | None = None,
        *,
        axis_name: str = REPLICA_AXIS,
    ) -> None:
        super().__init__(
            core.CentralStorageStrategy(compute_devices, parameter_device, axis_name=axis_name)
        )


@core.MultiWorkerMirroredStrategy.register
@final
class MultiWorkerMirroredStrategy(Strategy):
    """`rx.MultiWorkerMirroredStrategy` with the v1 API; it takes the same arguments.

    >>> from replicax.compat import v1
    >>> v1.MultiWorkerMirroredStrategy().extended.should_checkpoint
    True
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        shard: Setting | None = None,
        gather_again: bool = True,
        min_shard_bytes: int = MIN_SHARD_BYTES,
        logical_devices: int = 1,
        partition_rules: Mapping[str, Sequence[int]] | None = None,
        axis_name: str = REPLICA_AXIS,
        cluster_options: ClusterOptions | None = None,
    ) -> None:
        super().__init__(
            core.MultiWorkerMirroredStrategy(
                cluster_resolver,
                communication_options,
                shard=shard,
                gather_again=gather_again,
                min_shard_bytes=min_shard_bytes,
                logical_devices=logical_devices,
                partition_rules=partition_rules,
                axis_name=axis_name,
                cluster_options=cluster_options,
            )
        )


@core.TPUStrategy.register
@final
class TPUStrategy(Strategy):
    """`rx.TPUStrategy` with the v1 API and v1's first three arguments.

    Args:
        tpu_cluster_resolver: a `TPUClusterResolver`; None means this process's TPU.
        steps_per_run: None or 1. Version 1 passed other numbers on to `Model.fit`; call
            `model.compile(..., steps_per_execution=n)` instead.
        device_assignment: the cores of each replica; None means one core per replica.
        experimental_spmd_xla_partitioning: see `rx.TPUStrategy`.
        partition_rules: see `rx.TPUStrategy`.
        axis_name: see `rx.TPUStrategy`.

    >>> from replicax.compat import v1
    >>> issubclass(v1.TPUStrategy, rx.TPUStrategy)
    True
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        steps_per_run: int | None = None,
        device_assignment: DeviceAssignment | None = None,
        *,
        experimental_spmd_xla_partitioning: bool = False,
        partition_rules: Mapping[str, Sequence[int]] | None = None,
        axis_name: str = REPLICA_AXIS,
    ) -> None:
        if steps_per_run not in (None, 1):
            raise ValueError(
                f"TPUStrategy(steps_per_run={steps_per_run!r}): a call runs one step. For "
                "several steps in one program, write `model.compile(..., "
                f"steps_per_execution={steps_per_run!r})` with Keras, or `rx.function(step).many(batches)`."
            )
        strategy = core.TPUStrategy(
            tpu_cluster_resolver,
            device_assignment,
            experimental_spmd_xla_partitioning,
            partition_rules=partition_rules,
            axis_name=axis_name,
        )
        super().__init__(strategy)
