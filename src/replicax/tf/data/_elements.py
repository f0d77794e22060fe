"""Elements: what a dataset gives one after the other, on the host.

An element is a structure (tuples, dicts, named tuples) of NumPy arrays, NumPy scalars and `bytes`. What
users pass or return is brought into that form here: a Python list is one array, Python numbers are 32 bits
wide, text is UTF-8 bytes, JAX arrays come to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.errors import InputError
from replicax.values import TensorSpec

__all__ = ["call", "frozen", "guarded", "leaf_dtype", "spec_of_element", "stack", "to_element"]

_TEXT = np.dtype(object)


def to_element(value: Any, what: str) -> Any:
    """`value`, which `what` (a call in the user's words) got, as an element."""
    return jax.tree.map(lambda leaf: _to_leaf(leaf, what), value, is_leaf=_is_leaf)


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, list)


def _to_leaf(value: Any, what: str) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, np.generic):
        return value
    if isinstance(value, list | bool | int | float | complex):
        return _of_python(value, what)
    if hasattr(value, "__array__"):
        return _normal(np.asarray(value), what)
    raise TypeError(
        f"{what}: expected arrays, got {_described(value)}. Elements are structures (tuples, dicts) of "
        "NumPy arrays, numbers, text and bytes."
    )


def _of_python(value: Any, what: str) -> Any:
    """Python's numbers, and lists, as TensorFlow would take them: 32 bits wide where that is enough."""
    first = _first(value)
    try:
        # As text, NumPy would cut off zero bytes at the end.
        array = np.asarray(value, _TEXT if isinstance(first, str | bytes) else None)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{what}: a list is one array, but the parts of {_described(value)} differ in shape. Pad them "
            "to one shape, or use `Dataset.from_generator` and `padded_batch`."
        ) from error
    if not isinstance(first, np.generic) and not hasattr(first, "__array__"):
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        elif array.dtype == np.int64 and (not array.size or np.abs(array).max() < 2**31):
            array = array.astype(np.int32)
    return _normal(array, what)


def _first(value: Any) -> Any:
    """The first number in a list of lists."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value


def _normal(array: np.ndarray, what: str) -> Any:
    """An array with text as bytes; a scalar if it has no axes."""
    if array.dtype.names is not None:
        raise InputError(
            f"{what}: an array has the dtype {array.dtype}, with fields. Make it a dict of arrays."
        )
    if array.dtype.kind in "SUO":
        array = _of_text(array, what)
    return array if array.ndim else array[()]


def _of_text(array: np.ndarray, what: str) -> np.ndarray:
    text = np.empty(array.shape, _TEXT)
    for index, value in np.ndenumerate(array):
        if not isinstance(value, str | bytes):
            raise TypeError(
                f"{what}: an array has the Python object {_described(value)} in it. Arrays are of numbers, "
                "or of text and bytes."
            )
        text[index] = value.encode() if isinstance(value, str) else bytes(value)
    return text


def _described(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} (a {type(value).__name__})"


def leaf_dtype(leaf: Any) -> np.dtype:
    """The dtype of a part of an element; that of bytes is `object`."""
    return _TEXT if isinstance(leaf, bytes) else leaf.dtype


def spec_of_element(element: Any) -> Any:
    """The structure of an element with specs in place of arrays."""
    return jax.tree.map(lambda leaf: TensorSpec(np.shape(leaf), leaf_dtype(leaf)), element)


def frozen(element: Any) -> Any:
    """`element` with arrays that can't be written to, for those that are given out more than once."""
    return jax.tree.map(_read_only, element)


def _read_only(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view


def stack(elements: Sequence[Any]) -> Any:
    """A batch of `elements`."""
    return _joined(elements, _stack_leaves)


def _joined(elements: Sequence[Any], join: Callable[[tuple[Any, ...]], Any]) -> Any:
    try:
        return jax.tree.map(lambda *leaves: join(leaves), *elements)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{len(elements)} elements can't be put into one batch, since they differ in structure: {error}"
        ) from None


def _stack_leaves(leaves: tuple[Any, ...]) -> np.ndarray:
    dtypes = {leaf_dtype(leaf) for leaf in leaves}
    shapes = {np.shape(leaf) for leaf in leaves}
    if len(dtypes) > 1:
        names = " and ".join(sorted(map(str, dtypes)))
        raise InputError(
            f"Elements of dtypes {names} can't be put into one batch; make them one in a `map`."
        )
    if len(shapes) > 1:
        first, other = next((leaves[0], leaf) for leaf in leaves if np.shape(leaf) != np.shape(leaves[0]))
        raise InputError(
            f"Elements of shapes {np.shape(first)} and {np.shape(other)} can't be put into one batch. Use "
            "`padded_batch`, or give them one shape in a `map`."
        )
    return np.stack([np.asarray(leaf, leaf_dtype(leaf)) for leaf in leaves])


def call(function: Callable[..., Any], element: Any) -> Any:
    """`function` of an element; a tuple is passed as several arguments."""
    return function(*element) if type(element) is tuple else function(element)


def guarded(function: Callable[..., Any], what: str) -> Callable[[Any], Any]:
    """`function` of an element, whose StopIteration does not pass for the end of the data."""

    def call_guarded(element: Any) -> Any:
        try:
            return call(function, element)
        except StopIteration as error:
            raise RuntimeError(f"The function given to {what} raised StopIteration.") from error

    return call_guarded
