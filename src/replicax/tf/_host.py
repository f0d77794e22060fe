"""`tf.numpy_function` and `tf.py_function`: Python code in a compiled function, on `jax.pure_callback`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicax._jax import is_tracer
from replicax.tf._op import array
from replicax.tf.dtypes import on_device
from replicax.values import TensorSpec

__all__ = ["numpy_function", "py_function"]


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = None,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Call a function of NumPy arrays.

    In a compiled function XLA must know the shapes of the results: pass a `tf.TensorSpec`, or a list of
    them, as `Tout`. A dtype means the shape of the first argument.
    """
    return _called(lambda *arrays: func(*map(np.asarray, arrays)), inp, Tout)  # type: ignore[misc]


def py_function(
    func: Callable[..., Any] | None = None, inp: Any = None, Tout: Any = None, name: str | None = None
) -> Any:
    """Call a Python function of arrays; see `numpy_function`."""
    return _called(func, inp, Tout)


def _called(func: Any, inp: Any, result: Any) -> Any:
    arrays = [array(value) for value in inp]
    if not any(map(is_tracer, arrays)):
        return jax.tree.map(array, func(*arrays))
    shape = arrays[0].shape if arrays else ()
    specs = jax.tree.map(
        lambda spec: _struct(spec, shape), result, is_leaf=lambda x: isinstance(x, TensorSpec)
    )
    return jax.pure_callback(lambda *values: jax.tree.map(np.asarray, func(*values)), specs, *arrays)


def _struct(spec: Any, shape: Any) -> jax.ShapeDtypeStruct:
    if isinstance(spec, TensorSpec):
        return jax.ShapeDtypeStruct(spec.shape, on_device(spec.dtype))
    return jax.ShapeDtypeStruct(shape, on_device(spec))
