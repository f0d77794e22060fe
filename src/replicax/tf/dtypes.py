"""Dtypes: NumPy's, under TensorFlow's names.

JAX computes with 32 bits unless `jax_enable_x64` is set, so `int64` and `float64` are what a variable or an
array is asked for, and int32 and float32 what it gets.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "DType",
    "as_dtype",
    "bfloat16",
    "bool",
    "complex128",
    "complex64",
    "float16",
    "float32",
    "float64",
    "int16",
    "int32",
    "int64",
    "int8",
    "string",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
]

DType = np.dtype

bfloat16 = np.dtype(jnp.bfloat16)
float16, float32, float64 = np.dtype("float16"), np.dtype("float32"), np.dtype("float64")
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")
bool = np.dtype("bool")
string = np.dtype(object)
"""Text and bytes, in host memory only."""


def as_dtype(type_value: Any) -> np.dtype:
    """The dtype that a name, a type or a dtype means.

    >>> from replicax import tf
    >>> tf.as_dtype("float32") == tf.float32
    True
    """
    return string if type_value in (str, "string") else np.dtype(type_value)


def on_device(dtype: Any) -> np.dtype:
    """The dtype that JAX uses where `dtype` is asked for."""
    return jax.dtypes.canonicalize_dtype(as_dtype(dtype))
