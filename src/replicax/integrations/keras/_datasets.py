"""Replicax's own datasets as the input of `fit`, `evaluate` and `predict`.

Keras asks one function for the adapter that reads its input. For what `rx.from_arrays` and `rx.from_files`
make, and all else that is a `GivesSource` (`replicax.tf.data.Dataset` is), it gets one that reads the
dataset's source, with or without a strategy. Batches are for all devices together.
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
from replicax.values import DistributedValues

__all__ = ["adapting_datasets", "building_from_a_look"]

_num_passes: dict[int, int] = {}
"""How often each dataset was read, by its id: each pass over a shuffled one has an order of its own."""


def adapting_datasets(get_data_adapter: Callable[..., Any]) -> Callable[..., Any]:
    """Keras' choice of an adapter, which knows Replicax's datasets too."""

    @functools.wraps(get_data_adapter)
    def choose(x: Any, y: Any = None, sample_weight: Any = None, **options: Any) -> Any:
        if isinstance(x, DistributedDataset | DistributedIterator):
            raise InputError(
                f"Got a {type(x).__name__}, whose batches are split over the replicas already, but `fit`, "
                "`evaluate` and `predict` split them themselves. Pass the dataset that was given to "
                "`strategy.distribute_dataset`, with batches for all replicas together."
            )
        for value in keras.tree.flatten((x, y, sample_weight)):
            if isinstance(value, DistributedValues):
                raise InputError(
                    f"Got a {type(value).__name__}, which holds a value for each replica, but `fit`, "
                    "`evaluate` and `predict` split batches themselves. Pass the whole array; "
                    "`strategy.gather(value, axis=0)` puts it together."
                )
        if not isinstance(x, GivesSource):
            return get_data_adapter(x, y, sample_weight, **options)
        for name, value in {"y": y, "sample_weight": sample_weight}.items():
            if value is not None:
                raise InputError(
                    f"Got a dataset and `{name}`. Leave `{name}` out: a dataset gives batches (x, y) or "
                    "(x, y, sample_weight)."
                )
        return _DatasetAdapter(x, options.get("class_weight"))

    return choose


def building_from_a_look(symbolic_build: Callable[..., Any]) -> Callable[..., Any]:
    """Keras' way to build a model from the first batch, without beginning a pass over a dataset for it."""

    @functools.wraps(symbolic_build)
    def call(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        adapter = getattr(iterator, "data_adapter", None)
        if isinstance(adapter, _DatasetAdapter):
            iterator = adapter.look()
        return symbolic_build(self, iterator=iterator, data_batch=data_batch)

    return call


@final
class _DatasetAdapter(_private.DataAdapter):
    """The batches of a dataset, as Keras reads them."""

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
        """How many batches a pass has, if that is known."""
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
        """One pass."""
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

    def look(self) -> Iterator[Any]:
        """The first batch, read if it is asked for, as Keras' epochs give it."""
        with enter_default():
            batch = self._source.peek()
        if batch is None:
            raise _no_batches(self._dataset)
        yield 0, 0, iter([self._to_keras(batch)])

    def _to_keras(self, batch: Batch) -> tuple[Any, ...]:
        if batch.num_rows is None:
            shapes = batch.treedef.unflatten(str(leaf.shape) for leaf in batch.leaves)
            raise InputError(
                f"The dataset gives arrays with the shapes {shapes}, but those of a batch all have one row "
                "for each example. Put examples together with `.batch(batch_size)`."
            )
        data = batch.treedef.unflatten(batch.rows(0, batch.num_rows))
        if self._class_weight is None:
            return tuple(data) if isinstance(data, tuple | list) else (data,)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is not None or y is None or keras.tree.is_nested(y):
            raise InputError(
                "Got `class_weight`, which needs a dataset that gives (x, y) with a single array y and no "
                "sample weights. Leave `class_weight` out, and let the dataset give the weights."
            )
        return x, y, _private.class_weight_to_sample_weights(y, self._class_weight)


def _next(reader: Reader) -> Batch | None:
    # The functions of a dataset run as if no strategy was in use, as they always do.
    with enter_default():
        try:
            return reader.read()
        except StopIteration:
            return None


def _no_batches(dataset: Any) -> InputError:
    return InputError(
        f"{dataset!r} has no batches. Look at what its files, filters and `take` leave of it; with "
        "`drop_remainder` there is none if the batch size is larger than the number of examples."
    )
