"""Elements of a dataset, on the host.

An element is a structure (tuples, dicts, named tuples) of NumPy arrays, NumPy scalars and `bytes`. What
users pass or return is converted to that form here: a Python list becomes one array, Python numbers 32-bit
numbers, text UTF-8 bytes, and JAX arrays are copied to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.errors import InputError
from replicax.values import TensorSpec

__all__ = ["frozen", "guarded", "leaf_dtype", "spec_of_element", "stack", "to_element"]

_TEXT = np.dtype(object)


def to_element(value: Any, what: str) -> Any:
    """Convert `value` to an element; `what` says in messages where it comes from."""
    is_leaf = lambda part: part is None or isinstance(part, list)  # noqa: E731
    return jax.tree.map(lambda leaf: _to_leaf(leaf, what), value, is_leaf=is_leaf)


def _to_leaf(value: Any, what: str) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, np.generic):
        return value
    if isinstance(value, list | bool | int | float | complex):
        return _normalize(_from_python(value, what), what)
    if hasattr(value, "__array__"):
        return _normalize(np.asarray(value), what)
    raise TypeError(
        f"{what}: expected arrays, got {_describe(value)}. Elements are structures (tuples, dicts) of "
        "NumPy arrays, numbers, text and bytes."
    )


def _from_python(value: Any, what: str) -> np.ndarray:
    """Convert Python numbers and lists as TensorFlow does: to 32 bits if the values fit."""
    first = value
    while isinstance(first, list | tuple) and first:
        first = first[0]
    try:
        # NumPy's text dtypes would drop trailing zero bytes.
        array = np.asarray(value, _TEXT if isinstance(first, str | bytes) else None)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{what}: a list is one array, but the parts of {_describe(value)} differ in shape. Pad them "
            "to one shape, or use `Dataset.from_generator` and `padded_batch`."
        ) from error
    if isinstance(first, np.generic) or hasattr(first, "__array__"):
        return array
    if array.dtype == np.int64 and (not array.size or np.abs(array).max() < 2**31):
        return array.astype(np.int32)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _normalize(array: np.ndarray, what: str) -> Any:
    """Normalize an array: text becomes bytes, and an array without axes a scalar."""
    if array.dtype.names is not None:
        raise InputError(
            f"{what}: an array has the structured dtype {array.dtype}. Make it a dict of arrays."
        )
    if array.dtype.kind in "SUO":
        text = np.empty(array.shape, _TEXT)
        for index, value in np.ndenumerate(array):
            if not isinstance(value, str | bytes):
                raise TypeError(
                    f"{what}: an array contains the Python object {_describe(value)}. Arrays are of "
                    "numbers, or of text and bytes."
                )
            text[index] = value.encode() if isinstance(value, str) else bytes(value)
        array = text
    return array if array.ndim else array[()]


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} (a {type(value).__name__})"


def leaf_dtype(leaf: Any) -> np.dtype:
    """The dtype of a leaf of an element; for bytes, `object`."""
    return _TEXT if isinstance(leaf, bytes) else leaf.dtype


def spec_of_element(element: Any) -> Any:
    """The structure of an element with specs in place of arrays."""
    return jax.tree.map(lambda leaf: TensorSpec(np.shape(leaf), leaf_dtype(leaf)), element)


def frozen(element: Any) -> Any:
    """`element` with read-only arrays, for elements that are returned more than once."""

    def read_only(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        view = leaf.view()
        view.flags.writeable = False
        return view

    return jax.tree.map(read_only, element)


def stack(elements: Sequence[Any]) -> Any:
    """Stack `elements` into a batch. Grain's function would widen dtypes and drop zero bytes of text."""
    try:
        return jax.tree.map(lambda *leaves: _stack_leaves(leaves), *elements)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{len(elements)} elements can't be put into one batch: their structures differ: {error}"
        ) from None


def _stack_leaves(leaves: tuple[Any, ...]) -> np.ndarray:
    dtype, shape = leaf_dtype(leaves[0]), np.shape(leaves[0])
    for leaf in leaves:
        if leaf_dtype(leaf) != dtype:
            names = " and ".join(sorted([str(dtype), str(leaf_dtype(leaf))]))
            raise InputError(
                f"Elements of dtypes {names} can't be put into one batch. Convert them with `map`."
            )
        if np.shape(leaf) != shape:
            raise InputError(
                f"Elements of shapes {shape} and {np.shape(leaf)} can't be put into one batch. Use "
                "`padded_batch`, or bring them to one shape with `map`."
            )
    return np.stack([np.asarray(leaf, dtype) for leaf in leaves])


def guarded(function: Callable[..., Any], what: str) -> Callable[[Any], Any]:
    """Wrap a user's function: unpack tuples, and don't let its StopIteration end the dataset."""

    def call(element: Any) -> Any:
        try:
            return function(*element) if type(element) is tuple else function(element)
        except StopIteration as error:
            raise RuntimeError(f"The function given to {what} raised StopIteration.") from error

    return call
