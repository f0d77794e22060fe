"""`tf.data.experimental`: the parts that make sense here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax.input import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, AutoShardPolicy
from replicax.tf._missing import refuse
from replicax.tf.data._arguments import AUTOTUNE, as_number
from replicax.tf.data._dataset import Dataset
from replicax.tf.data._missing import OF_EXPERIMENTAL
from replicax.tf.data._options import (
    AutotuneOptions,
    DistributeOptions,
    OptimizationOptions,
    ThreadingOptions,
)

__all__ = ["AUTOTUNE", "INFINITE_CARDINALITY", "UNKNOWN_CARDINALITY", "AutoShardPolicy", "AutotuneOptions"]
__all__ += [
    "DistributeOptions",
    "OptimizationOptions",
    "ThreadingOptions",
    "assert_cardinality",
    "cardinality",
]

__getattr__ = refuse("tf.data.experimental", OF_EXPERIMENTAL)


def cardinality(dataset: Dataset) -> int:
    """The number of elements of a dataset, if it is known without reading it.

    >>> cardinality(Dataset.range(4).repeat())
    -1
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(f"tf.data.experimental.cardinality takes a tf.data.Dataset, got {dataset!r}.")
    return dataset.cardinality()


def assert_cardinality(expected_cardinality: Any) -> Callable[[Dataset], Dataset]:
    """For `Dataset.apply`: declares the number of elements, which reading checks.

    >>> even = Dataset.range(6).filter(lambda i: i % 2 == 0)
    >>> len(even.apply(assert_cardinality(3)))
    3
    """
    number = as_number(expected_cardinality, "tf.data.experimental.assert_cardinality(", least=-2)
    return lambda dataset: dataset.assert_cardinality(number)
