"""What nodes build their Grain pipelines with. This is imported only when a dataset is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import grain

from replicax.tf.data._by_index import ENDLESS, CachedRows, JoinedRows, Rows, ShuffledRows
from replicax.tf.data._node import Opening
from replicax.tf.data._streams import (
    CacheIterator,
    ConcatenateIterator,
    CountingIterator,
    FileIterator,
    GeneratorIterator,
    NestedIterator,
    RepeatIterator,
    StrideIterator,
)

__all__ = [
    "ENDLESS",
    "CacheIterator",
    "CachedRows",
    "ConcatenateIterator",
    "CountingIterator",
    "FileIterator",
    "GeneratorIterator",
    "JoinedRows",
    "NestedIterator",
    "RepeatIterator",
    "Rows",
    "ShuffledRows",
    "as_stream",
    "is_by_index",
    "iterate",
    "limit",
    "side_by_side",
    "stream",
    "stride",
    "window_shuffle",
]


def is_by_index(dataset: Any) -> bool:
    """Whether elements can be had by index."""
    return isinstance(dataset, grain.MapDataset)


def as_stream(dataset: Any, opening: Opening) -> Any:
    """`dataset` as one that gives its elements one after the other."""
    if not is_by_index(dataset):
        return dataset
    buffer_size = max(opening.buffer_size, opening.num_threads) if opening.num_threads else 0
    return dataset.to_iter_dataset(grain.ReadOptions(opening.num_threads, buffer_size))


def iterate(dataset: Any, opening: Opening) -> Any:
    """An iterator over `dataset`."""
    opened = as_stream(dataset, opening)
    # Otherwise Grain would write into every error that it has shortened the traceback.
    opened.has_child = True
    return opened.__iter__()


@final
class _Stream(grain.IterDataset):
    def __init__(self, parents: Sequence[Any], make: Callable[..., Any]) -> None:
        super().__init__(parents)
        self._make = make

    def __iter__(self) -> Any:
        return self._make(*[parent.__iter__() for parent in self.parents])


def stream(parents: Sequence[Any], make: Callable[..., Any]) -> Any:
    """The dataset that iterates with what `make` makes of its parents' iterators."""
    return _Stream(parents, make)


def window_shuffle(dataset: Any, window_size: int, seed: int) -> Any:
    """A stream that is shuffled `window_size` elements at a time."""
    return grain.experimental.WindowShuffleIterDataset(dataset, window_size=window_size, seed=seed)


def limit(dataset: Any, count: int) -> Any:
    """The first elements of a stream."""
    return grain.experimental.LimitIterDataset(dataset, count)


def stride(dataset: Any, start: int, step: int) -> Any:
    """Every `step`-th element, from `start`."""
    if is_by_index(dataset):
        return dataset.slice(slice(start, None, step))
    return stream((dataset,), lambda iterator: StrideIterator(iterator, start, step))


def side_by_side(datasets: Sequence[Any]) -> Any:
    """Tuples of the elements of several datasets, as long as all have some."""
    if not is_by_index(datasets[0]):
        return grain.experimental.ZipIterDataset(datasets, strict=False)
    length = min(map(len, datasets))
    return grain.experimental.ZipMapDataset([dataset.slice(slice(0, length)) for dataset in datasets])
