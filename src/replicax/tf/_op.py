"""Ops: JAX functions that also accept variables, take TensorFlow's `name` argument and raise its errors.

**Known integers.** Inside a traced function JAX traces every array, and a traced array can't be a shape or
an axis. But TensorFlow programs compute shapes with ops: `tf.shape(x)[0] * 2`, `tf.concat([[n], size], 0)`.
So integers with known values stay NumPy arrays during a trace, and an op declared with `folding` computes
on them right away.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import at_trace, eval_trace, is_staging, is_tracer
from replicax.errors import OpArgumentError, ReplicaxError
from replicax.tf._symbolic import has_symbolic, in_model
from replicax.values import IndexedSlices
from replicax.variables import Variable

__all__ = ["array", "binary", "folding", "has_arrays", "known", "named", "op", "rows_of", "static", "unary"]

_FEW = 1024


def array(value: Any) -> jax.Array:
    """Convert `value` to an array; it may be a variable, an `IndexedSlices`, or a list with arrays."""
    if isinstance(value, IndexedSlices):
        return value.to_dense()
    if isinstance(value, list | tuple) and any(map(has_arrays, value)):
        return jnp.stack([array(part) for part in value])
    return jnp.asarray(value)


def rows_of(params: Any, indices: Any) -> jax.Array:
    """The rows of an array or a variable; of a variable on parameter servers, only these are fetched."""
    if isinstance(params, Variable):
        return params.sparse_read(array(indices))
    return jnp.take(array(params), array(indices), axis=0)


def has_arrays(value: Any) -> bool:
    """Whether `value` is an array or a variable, or a list that contains one."""
    if isinstance(value, list | tuple):
        return any(map(has_arrays, value))
    return isinstance(value, jax.Array) or hasattr(type(value), "__jax_array__")


def static(numbers: Any) -> Any:
    """Convert an axis, a size or a permutation to Python: None, an int, or a tuple of ints."""
    if numbers is None:
        return None
    found = np.asarray(numbers)
    return tuple(int(n) for n in found) if found.ndim else int(found)


def named(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument `name` that every TensorFlow op has; it shows up in profiles."""

    @functools.wraps(fn)
    def with_name(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if name is None else jax.named_scope(name):
            return fn(*args, **kwargs)

    return with_name


def op(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`named`, and JAX's various errors for bad arguments become one class, as in TensorFlow."""

    @functools.wraps(fn)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except (TypeError, ValueError) as error:
            if isinstance(error, ReplicaxError | jax.errors.JAXTypeError):
                raise
            if has_symbolic(args, kwargs):  # of a Keras model that is being made
                return in_model(checked, *args, **kwargs)
            raise OpArgumentError(f"tf.{fn.__name__}: {error}") from error

    return named(checked)


def folding(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An op that is computed during the trace if all its arguments are known integers."""
    checked = op(fn)

    @functools.wraps(fn)
    def folded(*args: Any, **kwargs: Any) -> Any:
        if not is_staging() or not _are_known([*args, *kwargs.values()]):
            return checked(*args, **kwargs)
        with at_trace(eval_trace):
            return jax.tree.map(known, checked(*args, **kwargs))

    return folded


def known(value: Any) -> Any:
    """Integers as a NumPy array, whose values stay known during a trace."""
    return np.asarray(value) if isinstance(value, jax.Array) and value.dtype.kind in "iub" else value


def _are_known(arguments: Iterable[Any]) -> bool:
    leaves = list(itertools.chain.from_iterable(map(_numbers, arguments)))
    return all(map(_is_known, leaves)) and 0 < sum(map(np.size, leaves)) <= _FEW


def _numbers(argument: Any) -> Iterable[Any]:
    """The numeric parts of an argument; skips settings such as None, a dtype or a string."""
    if isinstance(argument, list | tuple):
        return itertools.chain.from_iterable(map(_numbers, argument))
    setting = argument is None or isinstance(argument, str | np.dtype | type)
    return () if setting else (argument,)


def _is_known(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return not is_tracer(leaf) and leaf.dtype.kind in "iub"
    return isinstance(leaf, int)


def unary(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An op that calls a JAX function of one argument."""

    def thin(x: Any) -> Any:
        return fn(array(x))

    return _named_after(fn, thin)


def binary(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An op that calls a JAX function of two arguments."""

    def thin(x: Any, y: Any) -> Any:
        return fn(array(x), array(y))

    return _named_after(fn, thin)


def _named_after(fn: Callable[..., Any], thin: Callable[..., Any]) -> Callable[..., Any]:
    thin.__doc__ = f"`{fn.__module__}.{fn.__name__}`, element by element."
    thin.__name__ = thin.__qualname__ = fn.__name__
    return folding(thin)
