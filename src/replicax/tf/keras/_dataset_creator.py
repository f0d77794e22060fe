"""`DatasetCreator`: wraps a function that creates a dataset, as input to `fit` on parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from replicax.input import InputContext

__all__ = ["DatasetCreator"]


@final
class DatasetCreator:
    """A function that each worker calls to create its dataset; `fit` also accepts the function itself.

    Args:
        dataset_fn: takes an `InputContext` and returns a dataset.
        input_options: has no effect: batches are prefetched to the devices in any case.

    >>> from replicax import tf
    >>> make = tf.keras.utils.experimental.DatasetCreator(lambda context: tf.data.Dataset.range(4).batch(2))
    >>> [batch.tolist() for batch in make(None)]
    [[0, 1], [2, 3]]
    """

    def __init__(self, dataset_fn: Callable[[Any], Any], input_options: Any = None) -> None:
        if not callable(dataset_fn):
            raise TypeError(f"DatasetCreator takes a function that returns a dataset, got {dataset_fn!r}.")
        self.dataset_fn, self.input_options = dataset_fn, input_options

    def __call__(self, context: InputContext) -> Any:
        """The dataset of a worker."""
        return self.dataset_fn(context)
