"""NumPy's dtypes under TensorFlow's names.

JAX computes in 32 bits unless `jax_enable_x64` is set: a variable or an array that is created with `int64`
or `float64` gets int32 or float32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.tf._missing import refuse

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
"""Text and bytes, on the host only."""


def as_dtype(type_value: Any) -> np.dtype:
    """The dtype for a name, a type or a dtype.

    >>> from replicax import tf
    >>> tf.as_dtype("float32") == tf.float32
    True
    """
    return string if type_value in (str, "string") else np.dtype(type_value)


def on_device(dtype: Any) -> np.dtype:
    """The dtype that JAX uses for `dtype`."""
    return jax.dtypes.canonicalize_dtype(as_dtype(dtype))


_QUANTIZED = "int8 and your own scale, or a library for quantization in JAX, such as qwix"

__getattr__ = refuse(
    "tf.dtypes",
    {
        **dict.fromkeys(["qint8", "qint16", "qint32", "quint8", "quint16", "QUANTIZED_DTYPES"], _QUANTIZED),
        "cast": "`tf.cast`",
        "complex": "`jax.lax.complex`",
        "double": "`tf.float64`",
        "half": "`tf.float16`",
        "saturate_cast": "`tf.cast(tf.clip_by_value(...))`",
    },
)
