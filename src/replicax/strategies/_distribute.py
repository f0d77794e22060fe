"""The methods of `Strategy` that give data to the replicas: datasets, batches and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from replicax import input as inputs
from replicax._messages import brief
from replicax.contexts import enter_default, require_cross_replica
from replicax.input import ArrayDataset, DistributedDataset, InputContext, InputOptions
from replicax.strategies._logical import on_all_devices
from replicax.strategies._run_options import ValueContext
from replicax.strategies._signatures import Batches, Leaf, PartialBatch, Structure, T
from replicax.types import Untyped
from replicax.values import PerReplica, map_leaves, regroup_apart

if TYPE_CHECKING:
    from replicax.strategies._strategy import StrategyBase

__all__ = [
    "distribute_batch",
    "distribute_dataset",
    "distribute_datasets_from_function",
    "distribute_values_from_function",
    "make_numpy_dataset",
]


@overload
def distribute_dataset(
    self: StrategyBase, dataset: Untyped | Batches[Untyped], options: InputOptions | None = ...
) -> DistributedDataset[Any]: ...
@overload
def distribute_dataset(
    self: StrategyBase, dataset: Batches[Leaf], options: InputOptions | None = ...
) -> DistributedDataset[PerReplica[Leaf]]: ...
@overload
def distribute_dataset(
    self: StrategyBase, dataset: Batches[Structure], options: InputOptions | None = ...
) -> DistributedDataset[Structure]: ...
@overload
def distribute_dataset(
    self: StrategyBase, dataset: Any, options: InputOptions | None = ...
) -> DistributedDataset[Any]: ...
def distribute_dataset(
    self: StrategyBase, dataset: Any, options: InputOptions | None = None
) -> DistributedDataset[Any]:
    """Split the batches of a dataset over the replicas, and prepare them in the background.

    Each batch of `dataset` is a global batch, for all replicas together. It is split along the first axis.
    The replicas' sizes differ by at most one, and no example is dropped, added or duplicated.

    Args:
        dataset: a Grain `MapDataset`, `IterDataset` or `DataLoader`, a `tf.data.Dataset`, a torch
            `DataLoader`, `rx.from_arrays(...)`, `rx.from_files(...)`, a list of batches or anything
            else that can be iterated over repeatedly, a function that returns a new iterator, or an
            iterator, which allows only one pass. Batches are arrays or structures of arrays.
        options: an `InputOptions`.

    Returns:
        A `DistributedDataset`. Loop over it once for each epoch.

    Raises:
        NotADatasetError: `dataset` is none of the above.
        InputError: a batch can't be split; raised when it is read.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = rx.from_arrays({"x": jnp.arange(5.0), "y": jnp.ones(5)}).batch(3)
    >>> for batch in strategy.distribute_dataset(dataset):
    ...     print([x.tolist() for x in strategy.local_results(batch["x"])])
    [[0.0, 1.0], [2.0]]
    [[3.0], [4.0]]
    """
    require_cross_replica(self, "distribute_dataset()")
    return inputs.distribute_dataset(dataset, self._input_target, options)


@overload
def distribute_datasets_from_function(
    self: StrategyBase,
    dataset_fn: Callable[[InputContext], Batches[Leaf]],
    options: InputOptions | None = ...,
) -> DistributedDataset[PerReplica[Leaf]]: ...
@overload
def distribute_datasets_from_function(
    self: StrategyBase,
    dataset_fn: Callable[[InputContext], Batches[Structure]],
    options: InputOptions | None = ...,
) -> DistributedDataset[Structure]: ...
@overload
def distribute_datasets_from_function(
    self: StrategyBase, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = ...
) -> DistributedDataset[Any]: ...
def distribute_datasets_from_function(
    self: StrategyBase, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
) -> DistributedDataset[Any]:
    """Distribute datasets that a function makes for each process, or for each replica.

    Batches are not split: each replica takes the next batch of its process's dataset, so the dataset's
    batch size is that of one replica. At the end of a dataset, a replica without a batch gets an empty one.

    Args:
        dataset_fn: called with an `InputContext`, once per process (or, with
            `InputReplicationMode.PER_REPLICA`, once per replica); returns anything that
            `distribute_dataset` takes.
        options: an `InputOptions`.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> def dataset_fn(context):
    ...     batch_size = context.get_per_replica_batch_size(4)
    ...     return rx.from_arrays(np.arange(8)).batch(batch_size)
    >>> for batch in strategy.distribute_datasets_from_function(dataset_fn):
    ...     print([x.tolist() for x in strategy.local_results(batch)])
    [[0, 1], [2, 3]]
    [[4, 5], [6, 7]]
    """
    require_cross_replica(self, "distribute_datasets_from_function()")
    return inputs.distribute_datasets_from_function(dataset_fn, self._input_target, options)


@overload
def distribute_batch(
    self: StrategyBase, batch: Leaf, partial_batch: PartialBatch = ..., batch_size: int | None = ...
) -> PerReplica[Leaf]: ...
@overload
def distribute_batch(
    self: StrategyBase, batch: Structure, partial_batch: PartialBatch = ..., batch_size: int | None = ...
) -> Structure: ...
def distribute_batch(
    self: StrategyBase,
    batch: Any,
    partial_batch: PartialBatch = "exact",
    batch_size: int | None = None,
) -> Any:
    """Split a batch that does not come from a dataset, such as a sample from a replay buffer.

    The batch is for all replicas together. It is split like the batches of a dataset: along the first axis,
    into sizes that differ by at most one, without dropping, adding or duplicating examples. Its arrays are
    copied, so you may change them afterwards. With several workers, each one passes the same global batch
    and uses its own replicas' rows. For data that only one worker has, use
    `strategy.distribute_values_from_function`.

    Args:
        batch: an array, or a structure of arrays with one row per example, in host memory or on a device.
        partial_batch: what to do if not every replica gets the same (or, with `batch_size`, the full)
            number of examples, as in `InputOptions`: "exact" gives each replica only its own rows, "pad"
            adds rows that are masked out, "error" raises.
        batch_size: the number of examples in a full batch, for "pad" and "error". If sizes vary, "pad" with
            the largest size lets all steps share one compiled program.

    Returns:
        The structure of the batch, with per-replica values in place of arrays, for `strategy.run`. With one
        replica, the values are plain arrays.

    Raises:
        InputError: `batch` is not a batch, is already distributed, or is not allowed by `partial_batch`
            or `batch_size`.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> batch = strategy.distribute_batch({"x": np.arange(3.0), "y": np.ones(3)})
    >>> [x.tolist() for x in strategy.local_results(batch["x"])]
    [[0.0, 1.0], [2.0]]
    >>> strategy.reduce("MEAN", strategy.run(lambda b: b["x"] ** 2, args=(batch,)), axis=0)
    Array(1.6666666, dtype=float32)
    """
    require_cross_replica(self, "distribute_batch()")
    return self._host_batches.distribute(batch, partial_batch, batch_size)


def make_numpy_dataset(self: StrategyBase, numpy_input: T) -> ArrayDataset[T]:
    """A dataset of the rows of arrays; the same as `rx.from_arrays`.

    Args:
        numpy_input: an array, or a structure of arrays with one row per example.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = strategy.make_numpy_dataset((np.zeros((6, 2)), np.arange(6)))
    >>> strategy.distribute_dataset(dataset.batch(4)).cardinality
    2
    """
    return inputs.from_arrays(numpy_input)


@overload
def distribute_values_from_function(
    self: StrategyBase, value_fn: Callable[[ValueContext], Untyped]
) -> Any: ...
@overload
def distribute_values_from_function(
    self: StrategyBase, value_fn: Callable[[ValueContext], Leaf]
) -> PerReplica[Leaf]: ...
@overload
def distribute_values_from_function(
    self: StrategyBase, value_fn: Callable[[ValueContext], Structure]
) -> Structure: ...
def distribute_values_from_function(self: StrategyBase, value_fn: Callable[[ValueContext], Any]) -> Any:
    """A per-replica value made of what `value_fn` returns for each replica.

    Args:
        value_fn: called for each replica of this process with a `ValueContext`. NumPy arrays that it
            returns are copied.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> strategy.distribute_values_from_function(lambda ctx: 10 * ctx.replica_id_in_sync_group)
    PerReplica:{
      0: 0,
      1: 10
    }
    """
    if not callable(value_fn):
        raise TypeError(
            "distribute_values_from_function takes a function of a replica's ValueContext, got "
            f"{brief(value_fn)}. For the same value in all replicas, pass it to `strategy.run` as it is."
        )
    total = self.num_replicas_in_sync
    contexts = [ValueContext(i, total) for i in self.mesh.local_replica_ids]
    with enter_default():
        values = [map_leaves(_copied, value_fn(context)) for context in contexts]
    if self.answers.plain_values:
        return values[0]
    if self.mesh.num_logical_devices > 1:
        values = [on_all_devices(self.mesh, i, value) for i, value in enumerate(values)]
    return regroup_apart(values, self.mesh)


def _copied(leaf: Any) -> Any:
    """Copy NumPy arrays, which the caller may change later."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
