"""Creating and reshaping tensors, which are JAX arrays.

`import replicax.tf` adds one method to JAX arrays that ported code often uses: `x.numpy()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import add_array_method, is_staging
from replicax.tf import dtypes
from replicax.tf._op import array, folding, has_arrays, op, rows_of, static
from replicax.values import IndexedSlices

__all__ = [
    "boolean_mask",
    "broadcast_to",
    "cast",
    "concat",
    "constant",
    "convert_to_tensor",
    "ensure_shape",
    "expand_dims",
    "eye",
    "fill",
    "gather",
    "gather_nd",
    "identity",
    "is_tensor",
    "linspace",
    "one_hot",
    "ones",
    "ones_like",
    "pad",
    "range",
    "rank",
    "repeat",
    "reshape",
    "reverse",
    "roll",
    "shape",
    "size",
    "slice",
    "split",
    "squeeze",
    "stack",
    "tile",
    "transpose",
    "unstack",
    "where",
    "zeros",
    "zeros_like",
]

_range, _slice = range, slice

add_array_method("numpy", lambda array: np.asarray(array), "The value as a NumPy array.")


def _strong(value: Any, dtype: Any) -> Any:
    """Convert to the dtype that TensorFlow would choose, if JAX has it, and never a weak type."""
    if has_arrays(value) or isinstance(value, IndexedSlices):
        found = array(value)
        return found if dtype is None else found.astype(dtypes.on_device(dtype))
    found = np.asarray(value, None if dtype is None else dtypes.as_dtype(dtype))
    if found.dtype.kind in "OUS":
        raise TypeError(
            f"{value!r} is not an array of numbers. JAX has no string tensors; keep text on the host, as "
            "Python strings or in a dataset."
        )
    if is_staging() and found.dtype.kind in "iub":
        return np.array(found, dtypes.on_device(found.dtype))  # known, see `_op.py`
    return jnp.asarray(found, dtypes.on_device(found.dtype))


@op
def constant(value: Any, dtype: Any = None, shape: Any = None) -> Any:
    """An array: Python floats are float32, Python ints int32.

    >>> from replicax import tf
    >>> tf.constant([1.0, 2.0])
    Array([1., 2.], dtype=float32)
    >>> tf.constant(1.5).numpy()
    array(1.5, dtype=float32)
    """
    made = _strong(value, dtype)
    if shape is None:
        return made
    if made.size != 1:
        return made.reshape(_shape(shape))
    return (jnp if isinstance(made, jax.Array) else np).full(_shape(shape), made)


@op
def convert_to_tensor(value: Any, dtype: Any = None, dtype_hint: Any = None) -> Any:
    """Convert `value`, which may be a variable, to an array.

    Args:
        value: an array, a variable, or Python numbers.
        dtype: the dtype.
        dtype_hint: the preferred dtype for Python numbers if there is no `dtype`.
    """
    if dtype is None and dtype_hint is not None and not hasattr(value, "dtype"):
        fits = np.can_cast(np.asarray(value).dtype, dtypes.as_dtype(dtype_hint), "same_kind")
        dtype = dtype_hint if fits else None
    return _strong(value, dtype)


@op
def identity(input: Any) -> Any:
    """A copy of an array, or of the value of a variable."""
    found = _strong(input, None)
    return found.copy() if isinstance(found, np.ndarray) else jnp.array(found, copy=True)


@folding
def cast(x: Any, dtype: Any) -> jax.Array:
    """`x` with another dtype."""
    return array(x).astype(dtypes.on_device(dtype))


def is_tensor(x: Any) -> bool:
    """Whether `x` is a JAX array."""
    return isinstance(x, jax.Array)


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in np.atleast_1d(np.asarray(shape, dtype=int)))


@op
def zeros(shape: Any, dtype: Any = dtypes.float32) -> jax.Array:
    """An array of zeros."""
    return jnp.zeros(_shape(shape), dtypes.on_device(dtype))


@op
def ones(shape: Any, dtype: Any = dtypes.float32) -> jax.Array:
    """An array of ones."""
    return jnp.ones(_shape(shape), dtypes.on_device(dtype))


@op
def fill(dims: Any, value: Any) -> jax.Array:
    """An array filled with one value."""
    return jnp.full(_shape(dims), _strong(value, None))


@op
def zeros_like(input: Any, dtype: Any = None) -> jax.Array:
    """Zeros, with the shape and dtype of `input`."""
    return jnp.zeros_like(array(input), None if dtype is None else dtypes.on_device(dtype))


@op
def ones_like(input: Any, dtype: Any = None) -> jax.Array:
    """Ones, with the shape and dtype of `input`."""
    return jnp.ones_like(array(input), None if dtype is None else dtypes.on_device(dtype))


@op
def eye(num_rows: Any, num_columns: Any = None, dtype: Any = dtypes.float32) -> jax.Array:
    """The identity matrix."""
    return jnp.eye(static(num_rows), static(num_columns), dtype=dtypes.on_device(dtype))


@op
def range(start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None) -> jax.Array:
    """The numbers from `start` up to `limit`; with one argument, from 0."""
    low, high = (0, start) if limit is None else (start, limit)
    numbers: Any = np.arange(low, high, delta)
    return _strong(numbers, dtype)


@op
def linspace(start: Any, stop: Any, num: int, axis: int = 0) -> jax.Array:
    """`num` numbers from `start` to `stop`, evenly spaced."""
    return jnp.linspace(array(start), array(stop), static(num), axis=static(axis))


@op
def one_hot(
    indices: Any, depth: int, on_value: Any = None, off_value: Any = None, axis: int = -1, dtype: Any = None
) -> jax.Array:
    """`on_value` (1) at the indices, `off_value` (0) elsewhere; the default dtype is that of the values."""
    hot = jax.nn.one_hot(array(indices), static(depth), axis=static(axis), dtype=jnp.bool_)
    given = [_strong(value, None).dtype for value in (on_value, off_value) if value is not None]
    found = jnp.result_type(*(given or [dtypes.float32])) if dtype is None else dtypes.on_device(dtype)
    on, off = 1 if on_value is None else on_value, 0 if off_value is None else off_value
    return jnp.where(hot, on, off).astype(found)


@folding
def reshape(tensor: Any, shape: Any) -> jax.Array:
    """The same elements in another shape; one size may be -1."""
    return jnp.reshape(array(tensor), _shape(shape) if np.size(shape) else ())


@folding
def transpose(a: Any, perm: Sequence[int] | None = None) -> jax.Array:
    """The axes in another order; by default reversed."""
    return jnp.transpose(array(a), static(perm))


@folding
def expand_dims(input: Any, axis: int) -> jax.Array:
    """Insert an axis of size 1."""
    return jnp.expand_dims(array(input), static(axis))


@folding
def squeeze(input: Any, axis: Any = None) -> jax.Array:
    """Remove axes of size 1."""
    return jnp.squeeze(array(input), static(axis) if np.size(axis) else None)


@folding
def concat(values: Any, axis: int) -> jax.Array:
    """Concatenate arrays along an axis."""
    parts = [array(value) for value in values] if isinstance(values, list | tuple) else [array(values)]
    return jnp.concatenate(parts, static(axis))


@folding
def stack(values: Any, axis: int = 0) -> jax.Array:
    """Stack arrays along a new axis."""
    return jnp.stack([_strong(value, None) for value in values], static(axis))


@folding
def unstack(value: Any, num: int | None = None, axis: int = 0) -> list[jax.Array]:
    """The slices of an array along an axis, without that axis."""
    moved = jnp.moveaxis(array(value), static(axis), 0)
    if num is not None and num != moved.shape[0]:
        raise ValueError(f"tf.unstack(num={num}): the array has size {moved.shape[0]} along axis {axis}.")
    return list(moved)


@folding
def split(value: Any, num_or_size_splits: Any, axis: int = 0, num: int | None = None) -> list[jax.Array]:
    """Split an array along an axis into a number of equal parts, or into parts of given sizes."""
    whole = array(value)
    if num is not None and num != np.size(num_or_size_splits):
        raise ValueError(
            f"tf.split(num={num}): there are {np.size(num_or_size_splits)} sizes in num_or_size_splits. "
            "Leave out `num`."
        )
    if np.ndim(num_or_size_splits) == 0:
        return jnp.split(whole, int(num_or_size_splits), static(axis))
    sizes, total = np.asarray(num_or_size_splits).tolist(), whole.shape[static(axis)]
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = total - sum(sizes) - 1  # the rest
    if sum(sizes) != total or min(sizes) < 0:
        raise ValueError(
            f"tf.split({num_or_size_splits}): the sizes must add up to {total}, the size of the array "
            f"along axis {axis}."
        )
    return jnp.split(whole, np.cumsum(sizes)[:-1].tolist(), static(axis))


@op
def tile(input: Any, multiples: Any) -> jax.Array:
    """Repeat an array along each axis."""
    return jnp.tile(array(input), _shape(multiples))


@op
def repeat(input: Any, repeats: Any, axis: int | None = None) -> jax.Array:
    """Repeat each element; `repeats` is one number for all, or one per element."""
    counts = static(repeats)
    return jnp.repeat(array(input), counts if isinstance(counts, int) else np.asarray(counts), static(axis))


@folding
def gather(params: Any, indices: Any, axis: Any = None, batch_dims: int = 0) -> jax.Array:
    """The rows of `params` at `indices`."""
    if batch_dims:
        params, indices = array(params), array(indices)
        inner = batch_dims - 1 if axis is None else static(axis) % params.ndim - 1
        return jax.vmap(lambda p, i: gather(p, i, inner, batch_dims - 1))(params, indices)
    along = static(axis) or 0
    return jnp.take(array(params), array(indices), axis=along) if along else rows_of(params, indices)


@folding
def gather_nd(params: Any, indices: Any, batch_dims: int = 0) -> jax.Array:
    """The elements or slices of `params` at `indices`, whose last axis has the coordinates."""
    if batch_dims:
        return jax.vmap(lambda p, i: gather_nd(p, i, batch_dims - 1))(array(params), array(indices))
    where_to_look = array(indices)
    return array(params)[tuple(jnp.moveaxis(where_to_look, -1, 0))]


@op
def boolean_mask(tensor: Any, mask: Any, axis: int = 0) -> jax.Array:
    """The elements where `mask` is true. In a compiled function their number is unknown: use tf.where."""
    tensor = array(tensor)
    return tensor[(*[_slice(None)] * (axis % tensor.ndim), np.asarray(mask, bool))]


@op
def where(condition: Any, x: Any = None, y: Any = None) -> jax.Array:
    """`x` where `condition` is true, `y` elsewhere; with one argument, the indices where it is true."""
    if x is None and y is None:
        return jnp.argwhere(array(condition))
    if x is None or y is None:
        raise ValueError("tf.where takes the condition alone, or both x and y.")
    return jnp.where(array(condition), array(x), array(y))


@folding
def slice(input_: Any, begin: Any, size: Any) -> jax.Array:
    """The part of an array that starts at `begin` and has this size; -1 means the rest."""
    starts, sizes = _shape(begin), _shape(size)
    parts = (_slice(b, None if n == -1 else b + n) for b, n in zip(starts, sizes, strict=True))
    return array(input_)[tuple(parts)]


@op
def pad(tensor: Any, paddings: Any, mode: str = "CONSTANT", constant_values: Any = 0) -> jax.Array:
    """Pad an array."""
    widths = np.asarray(paddings).tolist()
    if mode.upper() == "CONSTANT":
        return jnp.pad(array(tensor), widths, constant_values=constant_values)
    modes = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}
    return jnp.pad(array(tensor), widths, mode=modes[mode.upper()])


@folding
def reverse(tensor: Any, axis: Any) -> jax.Array:
    """Reverse an array along some axes."""
    return jnp.flip(array(tensor), static(axis))


@folding
def roll(input: Any, shift: Any, axis: Any) -> jax.Array:
    """Shift an array along axes, wrapping around at the ends."""
    return jnp.roll(array(input), array(shift), static(axis))


@op
def broadcast_to(input: Any, shape: Any) -> jax.Array:
    """Broadcast an array to a shape."""
    return jnp.broadcast_to(array(input), _shape(shape))


@op
def shape(input: Any, out_type: Any = dtypes.int32) -> Any:
    """The shape, as an array; `x.shape` is the tuple."""
    return _known(jnp.shape(array(input)), out_type)


def _known(numbers: Any, dtype: Any) -> Any:
    """Numbers whose values stay known during a trace, where programs use them in shapes.

    The elements of a JAX array would be traced, so this returns a NumPy array.
    """
    return (np if is_staging() else jnp).asarray(numbers, dtypes.on_device(dtype))


@op
def size(input: Any, out_type: Any = dtypes.int32) -> Any:
    """The number of elements, as an array."""
    return _known(jnp.size(array(input)), out_type)


@op
def ensure_shape(x: Any, shape: Any) -> jax.Array:
    """Check the shape of `x` and return it; None matches any size."""
    x = array(x)
    fits = len(shape) == x.ndim and all(
        want in (None, got) for want, got in zip(shape, x.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"expected the shape {tuple(shape)}, got {x.shape}.")
    return x


@op
def rank(input: Any) -> Any:
    """The number of axes, as an array."""
    return _known(jnp.ndim(array(input)), dtypes.int32)
