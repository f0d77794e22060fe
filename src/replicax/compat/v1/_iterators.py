"""`InputIterator`: the v1 iterator over a distributed dataset, with `initialize` and `get_next`."""

from __future__ import annotations

from typing import Any, final

from replicax.errors import OutOfRangeError
from replicax.input import DistributedDataset, DistributedIterator

__all__ = ["InputIterator"]


@final
class InputIterator:
    """Iterates over a distributed dataset, any number of times; see `strategy.make_dataset_iterator`.

    >>> from replicax.compat import v1
    >>> strategy = v1.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> iterator = strategy.make_dataset_iterator(rx.from_arrays(np.arange(4)).batch(4))
    >>> iterator.initialize()
    >>> strategy.experimental_run(lambda x: x.sum(), iterator)
    PerReplica:{
      0: Array(1, dtype=int32),
      1: Array(5, dtype=int32)
    }
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._dataset = dataset
        self._iterator: DistributedIterator | None = None

    @property
    def element_spec(self) -> Any:
        """The spec of a per-replica batch."""
        return self._dataset.element_spec

    def initialize(self) -> None:
        """Start a pass from the first batch.

        In version 1 this returned an operation to run. Here it takes effect immediately. An iterator that
        was never initialized starts at its first batch, too.
        """
        if self._iterator is not None:
            self._iterator.close()
        self._iterator = iter(self._dataset)

    @property
    def initializer(self) -> None:
        """None: there is nothing to run. `initialize()` starts another pass."""

    def __iter__(self) -> InputIterator:
        return self

    def __next__(self) -> Any:
        try:
            return self.get_next()
        except OutOfRangeError:
            raise StopIteration from None

    def get_next(self) -> Any:
        """The next batch, split over the replicas.

        Raises:
            OutOfRangeError: after the last batch; `initialize` starts another pass.
        """
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        try:
            return next(self._iterator)
        except StopIteration:
            raise OutOfRangeError(
                "The dataset has no more batches; initialize() starts another pass."
            ) from None
