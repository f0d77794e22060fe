"""`tf.TensorArray`: a list of arrays that is filled step by step and stacked at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.tf._op import array, static
from replicax.tf.dtypes import as_dtype, on_device

__all__ = ["TensorArray"]


@final
class TensorArray:
    """A list of arrays; `write` returns a new object, as in TensorFlow.

    Indices must be concrete: in a compiled function, use it in Python loops. In `tf.while_loop` and
    `tf.scan`, return rows from the function instead.

    Args:
        dtype: the dtype of the arrays.
        size: the number of arrays.
        dynamic_size: whether `write` may append.
        clear_after_read: no effect: an array can be read again.
        tensor_array_name: no effect.
        handle: must be None.
        flow: must be None.
        infer_shape: whether all arrays must have the same shape, which `stack` needs.
        element_shape: the shape that they must have.
        colocate_with_first_write_call: no effect.
        name: no effect.

    >>> from replicax import tf
    >>> squares = tf.TensorArray(tf.int32, size=3)
    >>> for i in range(3):
    ...     squares = squares.write(i, i * i)
    >>> squares.stack()
    Array([0, 1, 4], dtype=int32)
    """

    def __init__(
        self,
        dtype: Any,
        size: Any = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: Any = None,
        flow: Any = None,
        infer_shape: bool = True,
        element_shape: Any = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        if handle is not None or flow is not None:
            raise ValueError("TensorArray(handle=..., flow=...) need a graph. Leave them out.")
        self.dtype = as_dtype(dtype)
        self.dynamic_size = bool(dynamic_size)
        self._shape = None if element_shape is None else tuple(element_shape)
        self._arrays: tuple[Any, ...] = (None,) * (0 if size is None else static(size))

    @property
    def element_shape(self) -> tuple[Any, ...] | None:
        """The shape of each array; None if none was written."""
        written = (x.shape for x in self._arrays if x is not None)
        return self._shape if self._shape is not None else next(written, None)

    def _with(self, arrays: Sequence[Any]) -> TensorArray:
        other = TensorArray(self.dtype, 0, self.dynamic_size, element_shape=self._shape)
        other._arrays = tuple(arrays)
        return other

    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray:
        """A copy with `value` at `index`."""
        place, arrays = static(index), list(self._arrays)
        if place < 0 or (place >= len(arrays) and not self.dynamic_size):
            raise IndexError(
                f"TensorArray.write({place}): the array has {len(arrays)} elements. Pass a larger size, or "
                "dynamic_size=True."
            )
        arrays += [None] * (place + 1 - len(arrays))
        arrays[place] = array(value).astype(on_device(self.dtype))
        return self._with(arrays)

    def read(self, index: Any, name: str | None = None) -> jax.Array:
        """The array at `index`; zeros if it was never written."""
        return self._all()[static(index)]

    def _all(self) -> list[jax.Array]:
        shape = self.element_shape
        if shape is None and self._arrays:
            raise ValueError("TensorArray: nothing was written. Pass element_shape to read zeros.")
        zeros = jnp.zeros(shape or (), on_device(self.dtype))
        return [zeros if x is None else x for x in self._arrays]

    def stack(self, name: str | None = None) -> jax.Array:
        """All arrays, stacked along a new first axis."""
        return jnp.stack(self._all())

    def concat(self, name: str | None = None) -> jax.Array:
        """All arrays, concatenated along their first axis."""
        return jnp.concatenate(self._all())

    def gather(self, indices: Any, name: str | None = None) -> jax.Array:
        """Some of the arrays, stacked along a new first axis."""
        return jnp.stack([self.read(i) for i in np.asarray(indices)])

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """A copy with the rows of `value`."""
        return self._with(list(array(value).astype(on_device(self.dtype))))

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray:
        """A copy with the rows of `value` at `indices`."""
        result = self
        for i, row in zip(np.asarray(indices), array(value), strict=True):
            result = result.write(i, row)
        return result

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """A copy with the parts of `value`, which have these lengths."""
        return self._with(jnp.split(array(value), np.cumsum(np.asarray(lengths))[:-1].tolist()))

    def identity(self) -> TensorArray:
        """A copy."""
        return self

    def size(self, name: str | None = None) -> Any:
        """The number of arrays."""
        return np.int32(len(self._arrays))

    def __len__(self) -> int:
        return len(self._arrays)
