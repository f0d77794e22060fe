"""Finds the source for a dataset without importing the library that the dataset comes from."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from replicax.errors import NotADatasetError
from replicax.input._grain import grain_source
from replicax.input._iterables import FunctionSource, IterableSource, IteratorSource, refuse_arrays
from replicax.input._source import GivesSource, Source
from replicax.input._tf_data import tf_data_source
from replicax.values import DistributedValues

__all__ = ["find_source"]

_KINDS = (
    "a Grain MapDataset, IterDataset or DataLoader, a tf.data.Dataset, a torch DataLoader, "
    "rx.from_arrays(...), rx.from_files(...), a list of batches or another re-iterable, a function that "
    "returns an iterator, or an iterator"
)


def find_source(dataset: Any) -> Source:
    """The source that reads `dataset`; raises `NotADatasetError` if there is none."""
    if isinstance(dataset, GivesSource):
        return dataset.source()
    source = grain_source(dataset) or tf_data_source(dataset)
    if source is not None:
        return source
    _refuse(dataset)
    if isinstance(dataset, Iterator):
        return IteratorSource(dataset)
    if isinstance(dataset, Iterable) or _is_sequence(dataset):
        return IterableSource(dataset)
    if callable(dataset):
        function: Any = dataset
        _check_callable(function)
        return FunctionSource(function)
    raise NotADatasetError(f"{dataset!r} is not a dataset. A strategy distributes {_KINDS}.")


def _is_sequence(dataset: Any) -> bool:
    """Whether it can be read by index up to its length, like a torch Dataset."""
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def _refuse(dataset: Any) -> None:
    """Raise for iterables whose elements can't be batches."""
    refuse_arrays(dataset)
    others = str | bytes | bytearray | set | frozenset | DistributedValues | np.generic | type
    if isinstance(dataset, others):
        raise NotADatasetError(f"{dataset!r} is not a dataset. A strategy distributes {_KINDS}.")


def _check_callable(function: Any) -> None:
    """Raise if a function passed as a dataset needs arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind()
    except TypeError as error:
        raise NotADatasetError(
            f"A function passed as a dataset is called without arguments, but {function!r} has the "
            f"signature {signature}. Pass a function that takes an InputContext to "
            "strategy.distribute_datasets_from_function."
        ) from error
