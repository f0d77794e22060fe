"""Replicax's own datasets as input to `fit`, `evaluate` and `predict`.

Keras gets an adapter for its input from one function. We patch that function to return, for a Replicax
dataset (any `GivesSource`: `rx.from_arrays`, `rx.from_files`, `replicax.tf.data.Dataset`), an adapter that
reads the dataset's source, with or without a strategy. Batches are global batches.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, final

import keras

from replicax.contexts import enter_default
from replicax.errors import InputError
from replicax.input import Batch, DistributedDataset, DistributedIterator, GivesSource, Reader
from replicax.integrations.keras import _private
from replicax.integrations.keras._scheduling import FunctionAdapter, scheduling
from replicax.values import DistributedValues

__all__ = ["adapting_datasets", "building_from_first_batch"]

_num_passes: dict[int, int] = {}
"""id(dataset) -> number of passes so far. Each pass over a shuffled dataset has another order."""


def adapting_datasets(get_data_adapter: Callable[..., Any]) -> Callable[..., Any]:
    """Make Keras' `get_data_adapter` accept Replicax datasets, too."""

    @functools.wraps(get_data_adapter)
    def choose(x: Any, y: Any = None, sample_weight: Any = None, **options: Any) -> Any:
        run = scheduling.get()
        dataset_fn = None if run is None else run.dataset_function(x)
        if run is not None and dataset_fn is not None:
            return FunctionAdapter(run, dataset_fn, options.get("steps_per_epoch"))
        if isinstance(x, DistributedDataset | DistributedIterator):
            raise InputError(
                f"Got a {type(x).__name__}, whose batches are already split over the replicas, but `fit`, "
                "`evaluate` and `predict` split batches themselves. Pass the dataset that you passed to "
                "`strategy.distribute_dataset`, with global batches."
            )
        for value in keras.tree.flatten((x, y, sample_weight)):
            if isinstance(value, DistributedValues):
                raise InputError(
                    f"Got a {type(value).__name__}, which has a value for each replica, but `fit`, "
                    "`evaluate` and `predict` split batches themselves. Pass the whole array: "
                    "`strategy.gather(value, axis=0)`."
                )
        if not isinstance(x, GivesSource):
            return get_data_adapter(x, y, sample_weight, **options)
        for name, value in {"y": y, "sample_weight": sample_weight}.items():
            if value is not None:
                raise InputError(
                    f"Got both a dataset and `{name}`. Leave out `{name}`: batches of the dataset are "
                    "(x, y) or (x, y, sample_weight)."
                )
        return _DatasetAdapter(x, options.get("class_weight"))

    return choose


def building_from_first_batch(symbolic_build: Callable[..., Any]) -> Callable[..., Any]:
    """Make Keras build a model from the first batch without starting a pass over the dataset."""

    @functools.wraps(symbolic_build)
    def call(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        adapter = getattr(iterator, "data_adapter", None)
        if isinstance(adapter, _DatasetAdapter | FunctionAdapter):
            iterator = adapter.peek()
        return symbolic_build(self, iterator=iterator, data_batch=data_batch)

    return call


@final
class _DatasetAdapter(_private.DataAdapter):
    """Reads a dataset of Replicax for Keras."""

    def __init__(self, dataset: GivesSource, class_weight: Any) -> None:
        self._source, self._class_weight = dataset.source(), class_weight
        self._dataset = dataset
        if id(dataset) not in _num_passes:
            _num_passes[id(dataset)] = 0
            weakref.finalize(dataset, _num_passes.pop, id(dataset)).atexit = False
        if self._source.cardinality == 0:
            raise _no_batches(dataset)

    @property
    def num_batches(self) -> int | None:
        """The number of batches in a pass, if known."""
        count = self._source.cardinality
        return count if count >= 0 else None

    @property
    def batch_size(self) -> int | None:
        return self._source.batch_size

    @property
    def has_partial_batch(self) -> None:
        return None

    @property
    def partial_batch_size(self) -> None:
        return None

    def get_jax_iterator(self) -> Iterator[Any]:
        """Read the batches of one pass."""
        number = _num_passes[id(self._dataset)]
        _num_passes[id(self._dataset)] += 1
        with enter_default():
            reader = self._source.open(number)
        try:
            while (batch := _next(reader)) is not None:
                yield self._to_keras(batch)
            if reader.num_batches == 0:
                raise _no_batches(self._dataset)
        finally:
            reader.close()

    get_numpy_iterator = get_jax_iterator

    def peek(self) -> Iterator[Any]:
        """The first batch, read on demand, in the form of Keras' epoch iterator."""
        with enter_default():
            batch = self._source.peek()
        if batch is None:
            raise _no_batches(self._dataset)
        yield 0, 0, iter([self._to_keras(batch)])

    def _to_keras(self, batch: Batch) -> tuple[Any, ...]:
        if batch.num_rows is None:
            shapes = batch.treedef.unflatten(str(leaf.shape) for leaf in batch.leaves)
            raise InputError(
                f"The dataset yields arrays of shapes {shapes}, but all arrays of a batch must have one "
                "row per example. Batch the examples with `.batch(batch_size)`."
            )
        data = batch.treedef.unflatten(batch.rows(0, batch.num_rows))
        if self._class_weight is None:
            return tuple(data) if isinstance(data, tuple | list) else (data,)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is not None or y is None or keras.tree.is_nested(y):
            raise InputError(
                "Got `class_weight`, which needs a dataset of (x, y) with a single array y and no sample "
                "weights. Leave out `class_weight` and let the dataset yield (x, y, sample_weight)."
            )
        return x, y, _private.class_weight_to_sample_weights(y, self._class_weight)


def _next(reader: Reader) -> Batch | None:
    # The functions of a dataset always run in the default context, outside of any strategy.
    with enter_default():
        try:
            return reader.read()
        except StopIteration:
            return None


def _no_batches(dataset: Any) -> InputError:
    return InputError(
        f"{dataset!r} has no batches. Check its files, filters and `take`. With `drop_remainder`, the "
        "batch size must not be larger than the number of examples."
    )
