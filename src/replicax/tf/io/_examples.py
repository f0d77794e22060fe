"""Parses serialized examples into arrays: `tf.io.parse_single_example` and `parse_example`.

They run on the host, in `Dataset.map`, and return NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from replicax.errors import InputError
from replicax.tf.dtypes import as_dtype, string
from replicax.tf.io._images import as_bytes
from replicax.tf.io._messages import Example, Feature

__all__ = ["FixedLenFeature", "FixedLenSequenceFeature", "parse_example", "parse_single_example"]


class FixedLenFeature(NamedTuple):
    """A feature with a known shape; `default_value` replaces it in examples that lack it."""

    shape: Sequence[int]
    dtype: Any
    default_value: Any = None


class FixedLenSequenceFeature(NamedTuple):
    """A feature with any number of rows of a known shape; it is empty in examples that lack it."""

    shape: Sequence[int]
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


def parse_single_example(
    serialized: Any, features: dict[str, Any], name: str | None = None
) -> dict[str, Any]:
    """The features of one serialized example, as NumPy arrays.

    Args:
        serialized: the bytes of a `tf.train.Example`.
        features: a `FixedLenFeature` or `FixedLenSequenceFeature` for each name to read.
        name: no effect.

    Raises:
        InputError: the example does not have a feature, or it has another dtype or shape.

    >>> from replicax import tf
    >>> x = tf.train.Feature(float_list=tf.train.FloatList(value=[1, 2]))
    >>> example = tf.train.Example(features=tf.train.Features(feature={"x": x}))
    >>> description = {"x": tf.io.FixedLenFeature([2], tf.float32)}
    >>> tf.io.parse_single_example(example.SerializeToString(), description)
    {'x': array([1., 2.], dtype=float32)}
    """
    found = Example.FromString(as_bytes(serialized)).features.feature
    return {key: _parsed(key, found.get(key), wanted) for key, wanted in features.items()}


def parse_example(serialized: Any, features: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    """The features of a batch of serialized examples, stacked; see `parse_single_example`."""
    each = [parse_single_example(one, features) for one in np.asarray(serialized, object).ravel()]
    return {key: np.stack([_as_array(one[key]) for one in each]) for key in features}


def _as_array(value: Any) -> np.ndarray:
    return np.asarray(value, object) if isinstance(value, bytes) else value


def _parsed(key: str, feature: Feature | None, wanted: Any) -> Any:
    if not isinstance(wanted, FixedLenFeature | FixedLenSequenceFeature):
        raise NotImplementedError(
            f"The feature {key!r} is described by {wanted!r}. Use tf.io.FixedLenFeature or "
            "FixedLenSequenceFeature: there are no sparse and ragged tensors."
        )
    dtype, shape = as_dtype(wanted.dtype), tuple(wanted.shape)
    is_sequence = isinstance(wanted, FixedLenSequenceFeature)
    if feature is None or feature.WhichOneof() is None:
        return _missing(key, wanted, dtype, shape)
    values = _of_dtype(key, feature, dtype)
    try:
        array = np.array(values, dtype).reshape((-1, *shape) if is_sequence else shape)
    except ValueError as error:
        raise InputError(
            f"The feature {key!r} of an example has {len(values)} values, which do not fit the shape "
            f"{shape}."
        ) from error
    return array.item() if dtype == string and not array.shape else array


def _missing(key: str, wanted: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    if isinstance(wanted, FixedLenSequenceFeature):
        return np.zeros((0, *shape), dtype)
    if wanted.default_value is None:
        raise InputError(
            f"An example has no feature {key!r}, and its tf.io.FixedLenFeature has no default_value."
        )
    value = np.broadcast_to(np.asarray(wanted.default_value, dtype), shape)
    return value.item() if dtype == string and not shape else value.copy()


_LISTS = {"f": "float_list", "i": "int64_list", "O": "bytes_list"}


def _of_dtype(key: str, feature: Feature, dtype: np.dtype) -> list[Any]:
    expected, found = _LISTS.get(dtype.kind), feature.WhichOneof()
    if expected is None or found != expected:
        raise InputError(
            f"The feature {key!r} of an example is a {found}, which is not {dtype.name}. Use tf.int64, "
            "tf.float32 or tf.string, as it was written, and cast the result."
        )
    return getattr(feature, expected).value
