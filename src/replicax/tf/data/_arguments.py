"""Validates the arguments of a dataset's methods, at the call.

The parameter `call` is what the user wrote, up to the value, for messages.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicax.errors import InputError
from replicax.values import TensorSpec

__all__ = ["AUTOTUNE", "as_flag", "as_function", "as_number", "as_parallel_calls", "as_paths", "as_seed"]
__all__ += ["as_signature"]

AUTOTUNE = -1
"""Choose a number that affects only performance automatically."""


def as_number(value: Any, call: str, *, least: int) -> int:
    try:
        number = operator.index(value.item() if np.ndim(value) == 0 and hasattr(value, "item") else value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_):
        raise TypeError(f"{call}{value!r}): pass an integer.")
    if number < least:
        raise InputError(f"{call}{value!r}): pass a number of at least {least}.")
    return number


def as_flag(value: Any, call: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{call}{value!r}): pass True or False.")
    return bool(value)


def as_seed(seed: Any, call: str) -> int:
    """A non-negative seed; None means 0."""
    return 0 if seed is None else as_number(seed, call, least=-(2**63)) % 2**64


def as_parallel_calls(value: Any, call: str) -> int:
    """The number of threads; 0 means the caller's thread."""
    if value is None:
        return 0
    return min(os.cpu_count() or 1, 16) if value == AUTOTUNE else as_number(value, call, least=1)


def as_function(function: Any, call: str) -> Callable[..., Any]:
    if not callable(function):
        raise TypeError(f"{call} takes a function, got {function!r}.")
    return function


def as_paths(names: Any, call: str) -> list[str]:
    """A list of file names, from one or several."""
    if isinstance(names, str | bytes | os.PathLike):
        names = [names]
    try:
        return [os.fsdecode(name) for name in np.atleast_1d(np.asarray(names, object)).tolist()]
    except TypeError:
        raise TypeError(f"{call} takes the names of files, got {names!r}.") from None


def as_signature(signature: Any, types: Any, shapes: Any) -> tuple[Any, Any]:
    """The declared dtypes and shapes of a generator's elements."""
    call = "Dataset.from_generator"
    if signature is not None and (types is not None or shapes is not None):
        raise TypeError(f"{call} takes output_signature, or output_types and output_shapes; not both.")
    if signature is not None:
        for spec in jax.tree.leaves(signature):
            if not isinstance(spec, TensorSpec | jax.ShapeDtypeStruct):
                raise TypeError(
                    f"{call}(output_signature=...) must consist of tf.TensorSpec, got {spec!r}."
                )
        dtypes = jax.tree.map(lambda spec: _as_dtype(spec.dtype, call), signature)
        return dtypes, jax.tree.map(lambda spec: tuple(spec.shape), signature)
    if types is None:
        raise TypeError(
            f"{call} needs the types of the generator's elements: pass output_signature=tf.TensorSpec("
            "shape, dtype), or a structure of these."
        )
    types = tuple(types) if isinstance(types, list) else types
    dtypes = jax.tree.map(lambda dtype: _as_dtype(dtype, call), types)
    treedef = jax.tree.structure(dtypes)
    try:
        given = [None] * treedef.num_leaves if shapes is None else treedef.flatten_up_to(shapes)
    except ValueError as error:
        raise InputError(
            f"{call}(output_shapes={shapes!r}) must have the structure of output_types={types!r}: {error}"
        ) from None
    return dtypes, treedef.unflatten([None if shape is None else tuple(shape) for shape in given])


def _as_dtype(dtype: Any, call: str) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except TypeError:
        message = f"{call}: {dtype!r} is not a dtype; pass one such as tf.float32 or np.int64."
        raise TypeError(message) from None
    return np.dtype(object) if found.kind in "SUO" else found
