"""Reads and writes whole files, and decodes raw bytes."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.tf.dtypes import as_dtype, on_device
from replicax.tf.io._images import as_bytes
from replicax.tf.io.gfile import raising_not_found

__all__ = ["decode_raw", "read_file", "write_file"]


def _path(name: Any) -> pathlib.Path:
    found = name.item() if isinstance(name, np.ndarray | np.generic) else name
    return pathlib.Path(os.fsdecode(found))


@raising_not_found
def read_file(filename: Any, name: str | None = None) -> bytes:
    """Read the bytes of a file, on the host; works in `Dataset.map`, too."""
    return _path(filename).read_bytes()


def write_file(filename: Any, contents: Any, name: str | None = None) -> None:
    """Write bytes to a file, creating its folder if needed."""
    path = _path(filename)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents.encode() if isinstance(contents, str) else as_bytes(contents))


def decode_raw(
    input_bytes: Any, out_type: Any, little_endian: bool = True, fixed_length: Any = None, name: Any = None
) -> jax.Array:
    """Decode bytes as numbers.

    >>> from replicax import tf
    >>> tf.io.decode_raw(bytes([1, 0, 2, 0]), tf.int16)
    Array([1, 2], dtype=int16)
    """
    data = as_bytes(input_bytes)
    data = data if fixed_length is None else data[:fixed_length].ljust(fixed_length, b"\0")
    dtype = as_dtype(out_type)
    numbers = np.frombuffer(data, dtype.newbyteorder("<" if little_endian else ">"))
    return jnp.asarray(numbers.astype(dtype), on_device(dtype))
