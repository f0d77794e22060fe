"""`strategy.distribute_batch`: batches that do not come from a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from replicax._recording import is_transforming
from replicax.errors import InputError
from replicax.input._batch import WholeBatch
from replicax.input._dataset import DistributedDataset, Target
from replicax.input._iterator import DistributedIterator
from replicax.input._place import Placer
from replicax.input._source import GivesSource
from replicax.input._stream import split, why_not_a_batch
from replicax.topology import ReplicaMesh
from replicax.values import DistributedValues, flatten

__all__ = ["HostBatches"]

_CALL = "strategy.distribute_batch"


@final
class HostBatches:
    """Splits batches over the replicas of a strategy, one at a time.

    Args:
        target: the strategy's devices.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._placer = Placer(target.mesh, on_device=True, committed=target.committed)

    def distribute(self, batch: Any, partial_batch: Any, batch_size: int | None) -> Any:
        """The values of the replicas; see `Strategy.distribute_batch`."""
        _check_options(partial_batch, batch_size)
        _check_batch(batch, self._target.mesh)
        try:
            whole = WholeBatch(batch, private=False)
        except InputError as error:
            raise InputError(f"{_CALL}: {error}") from None
        if whole.num_rows is None:
            raise InputError(why_not_a_batch(whole, f"The batch given to {_CALL}"))
        step = split(whole, self._target.pipeline)
        full_size = -(-(batch_size or whole.num_rows) // self._target.pipeline.num_replicas)
        _check_sizes(step.sizes, full_size, partial_batch, batch_size)
        if partial_batch == "pad":
            return self._placer.place(step, full_size)
        return self._placer.place(step, None)


def _check_sizes(sizes: Sequence[int], full_size: int, partial_batch: str, batch_size: int | None) -> None:
    rows, count = sum(sizes), len(sizes)
    if batch_size is not None and rows > batch_size:
        raise InputError(
            f"{_CALL} got a batch of {rows} examples, more than batch_size={batch_size}. Pass the largest "
            "number of examples that a batch can have."
        )
    if partial_batch == "error" and set(sizes) != {full_size}:
        wanted = f"a multiple of {count}" if batch_size is None else f"{full_size} for each of them"
        raise InputError(
            f"{_CALL}(partial_batch='error') got a batch of {rows} examples for {count} replicas, but "
            f"expected {wanted}. Use 'exact' to split it anyway, or 'pad' to pad it."
        )


def _check_options(partial_batch: Any, batch_size: Any) -> None:
    if partial_batch not in ("exact", "pad", "error"):
        drop = " To drop a batch, skip the step." * (partial_batch == "drop")
        raise InputError(
            f"{_CALL}(partial_batch={partial_batch!r}): choose 'exact', 'pad' or 'error'.{drop}"
        )
    if batch_size is None:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise InputError(f"{_CALL}(batch_size={batch_size!r}): pass a number of examples of at least 1.")
    if partial_batch == "exact":
        raise InputError(
            f"{_CALL}(batch_size={batch_size}) is the size of a full batch, for partial_batch='pad' and "
            "'error'. With partial_batch='exact' leave it out."
        )


def _check_batch(batch: Any, mesh: ReplicaMesh) -> None:
    """Raise if `batch` is a dataset, is distributed, or is being traced."""
    if is_transforming():
        raise InputError(
            f"{_CALL} was called inside a traced function (rx.function or jax.jit). Call it before the "
            "step, and pass its result to the step as an argument."
        )
    if isinstance(batch, GivesSource | DistributedDataset | DistributedIterator):
        raise InputError(
            f"{_CALL} takes one batch, got an object of type {type(batch).__name__}. Use "
            "strategy.distribute_dataset for datasets."
        )
    for leaf in flatten(batch)[0]:
        if isinstance(leaf, DistributedValues):
            raise InputError(_already_distributed(leaf, mesh))


def _already_distributed(value: DistributedValues, mesh: ReplicaMesh) -> str:
    kind = type(value).__name__
    if value.mesh is None or value.mesh == mesh:
        return f"{_CALL} got a {kind}, which is already distributed. Pass it to strategy.run directly."
    return (
        f"{_CALL} got a {kind} of another strategy, with the replicas of {value.mesh}; this one has "
        f"{mesh}. Distribute the original batch, or gather the value with its own strategy first: "
        "`other_strategy.gather(value, axis=0)`."
    )
