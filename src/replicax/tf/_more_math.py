"""Less common functions of `tf.math` and `tf`: counting, segments, special functions, scans over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax.tf import dtypes
from replicax.tf._op import array, binary, named, op, static, unary

__all__ = [
    "accumulate_n",
    "acosh",
    "asinh",
    "atan2",
    "atanh",
    "bincount",
    "confusion_matrix",
    "conj",
    "cosh",
    "count_nonzero",
    "cumprod",
    "digamma",
    "divide_no_nan",
    "erfinv",
    "foldl",
    "foldr",
    "histogram_fixed_width",
    "imag",
    "in_top_k",
    "is_non_decreasing",
    "is_strictly_increasing",
    "lgamma",
    "log_softmax",
    "meshgrid",
    "polyval",
    "real",
    "reduce_euclidean_norm",
    "rint",
    "scan",
    "searchsorted",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_sum",
    "sequence_mask",
    "sinh",
    "softplus",
    "softsign",
    "strided_slice",
    "unique",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_sum",
    "vectorized_map",
    "xdivy",
    "xlogy",
    "zero_fraction",
]

acosh, asinh, atanh, cosh, sinh = map(unary, (jnp.arccosh, jnp.arcsinh, jnp.arctanh, jnp.cosh, jnp.sinh))
conj, imag, real, rint = map(unary, (jnp.conj, jnp.imag, jnp.real, jnp.rint))
digamma, lgamma = unary(jax.scipy.special.digamma), unary(jax.lax.lgamma)
erfinv, softplus, softsign = map(unary, (jax.scipy.special.erfinv, jax.nn.softplus, jax.nn.soft_sign))
atan2, xlogy = binary(jnp.arctan2), binary(jax.scipy.special.xlogy)


@op
def divide_no_nan(x: Any, y: Any) -> jax.Array:
    """The quotient; zero where `y` is zero."""
    x, y = array(x), array(y)
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


@op
def xdivy(x: Any, y: Any) -> jax.Array:
    """The quotient; zero where `x` is zero."""
    x, y = array(x), array(y)
    return jnp.where(x == 0, 0, x / jnp.where(x == 0, 1, y))


@op
def accumulate_n(inputs: Any, shape: Any = None, tensor_dtype: Any = None) -> jax.Array:
    """The sum of arrays of one shape."""
    return sum(map(array, inputs[1:]), array(inputs[0]))


@op
def cumprod(x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> jax.Array:
    """The cumulative product along an axis."""
    axis, x = static(axis), array(x)
    turned = jnp.flip(x, axis) if reverse else x
    if exclusive:
        ones = jnp.ones_like(jax.lax.slice_in_dim(turned, 0, 1, axis=axis % x.ndim))
        turned = jnp.concatenate([ones, jax.lax.slice_in_dim(turned, 0, -1, axis=axis % x.ndim)], axis)
    products = jnp.cumprod(turned, axis)
    return jnp.flip(products, axis) if reverse else products


@op
def count_nonzero(
    input: Any, axis: Any = None, keepdims: bool = False, dtype: Any = dtypes.int64
) -> jax.Array:
    """The number of nonzero elements."""
    return jnp.sum(array(input) != 0, axis=static(axis), keepdims=keepdims, dtype=dtypes.on_device(dtype))


@op
def zero_fraction(value: Any) -> jax.Array:
    """The fraction of elements that are zero."""
    return jnp.mean((array(value) == 0).astype(jnp.float32))


@op
def reduce_euclidean_norm(input_tensor: Any, axis: Any = None, keepdims: bool = False) -> jax.Array:
    """The root of the sum of squares over `axis`."""
    return jnp.sqrt(jnp.sum(jnp.square(array(input_tensor)), axis=static(axis), keepdims=keepdims))


@op
def bincount(
    arr: Any,
    weights: Any = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: Any = dtypes.int32,
) -> jax.Array:
    """How often each integer from 0 occurs. In a compiled function, `maxlength` must give the size."""
    x = array(arr).ravel()
    size = static(maxlength) if maxlength is not None else int(np.max(np.asarray(x), initial=-1)) + 1
    size = max(size, static(minlength) or 0) if maxlength is None else size
    amounts = jnp.ones(x.shape, dtypes.on_device(dtype)) if weights is None else array(weights).ravel()
    return jnp.zeros(size, amounts.dtype).at[jnp.where(x < size, x, size)].add(amounts, mode="drop")


@op
def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: Any = None,
    weights: Any = None,
    dtype: Any = dtypes.int32,
) -> jax.Array:
    """How often each class (row) was predicted as each class (column).

    >>> from replicax import tf
    >>> tf.math.confusion_matrix([0, 1, 1], [0, 1, 0]).tolist()
    [[1, 0], [1, 1]]
    """
    rows, columns = array(labels).ravel(), array(predictions).ravel()
    if num_classes is None:
        num_classes = int(max(np.max(np.asarray(x), initial=-1) for x in (rows, columns))) + 1
    count = static(num_classes)
    amounts = jnp.ones(rows.shape) if weights is None else array(weights)
    found = dtypes.on_device(dtype)
    return jnp.zeros((count, count), found).at[rows, columns].add(amounts.astype(found))


@op
def in_top_k(targets: Any, predictions: Any, k: Any) -> jax.Array:
    """Whether each target is among the `k` largest predictions of its row."""
    scores = array(predictions)
    own = jnp.take_along_axis(scores, array(targets)[:, None], axis=1)
    return jnp.sum(scores > own, axis=1) < static(k)


@op
def is_non_decreasing(x: Any) -> jax.Array:
    """Whether each element is at least as large as the one before."""
    return jnp.all(jnp.diff(array(x).ravel()) >= 0)


@op
def is_strictly_increasing(x: Any) -> jax.Array:
    """Whether each element is larger than the one before."""
    return jnp.all(jnp.diff(array(x).ravel()) > 0)


@op
def polyval(coeffs: Any, x: Any) -> jax.Array:
    """Evaluate a polynomial whose first coefficient belongs to the highest power."""
    return jnp.polyval(jnp.stack([array(c) for c in coeffs]), array(x))


@op
def log_softmax(logits: Any, axis: int = -1) -> jax.Array:
    """The logarithm of the softmax."""
    return jax.nn.log_softmax(array(logits), static(axis))


# Segments: rows with the same segment id.


def _segments(name: str, reduce: Callable[..., Any], *, sorted_ids: bool) -> Callable[..., Any]:
    def unsorted(data: Any, segment_ids: Any, num_segments: Any) -> jax.Array:
        return reduce(array(data), array(segment_ids), static(num_segments))

    def ordered(data: Any, segment_ids: Any) -> jax.Array:
        ids = array(segment_ids)
        return reduce(array(data), ids, int(np.max(np.asarray(ids), initial=-1)) + 1)

    made = ordered if sorted_ids else unsorted
    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"`{name.rsplit('_', 1)[1]}` over the rows with the same segment id."
    return op(made)


def _mean(data: Any, ids: Any, count: int) -> jax.Array:
    number = jax.ops.segment_sum(jnp.ones(ids.shape, data.dtype), ids, count)
    shape = (count, *[1] * (data.ndim - 1))
    return jax.ops.segment_sum(data, ids, count) / jnp.maximum(number, 1).reshape(shape)


_sum, _max, _min = jax.ops.segment_sum, jax.ops.segment_max, jax.ops.segment_min
segment_sum = _segments("segment_sum", _sum, sorted_ids=True)
segment_max = _segments("segment_max", _max, sorted_ids=True)
segment_min = _segments("segment_min", _min, sorted_ids=True)
segment_mean = _segments("segment_mean", _mean, sorted_ids=True)
unsorted_segment_sum = _segments("unsorted_segment_sum", _sum, sorted_ids=False)
unsorted_segment_max = _segments("unsorted_segment_max", _max, sorted_ids=False)
unsorted_segment_min = _segments("unsorted_segment_min", _min, sorted_ids=False)
unsorted_segment_mean = _segments("unsorted_segment_mean", _mean, sorted_ids=False)


# Arrays.


@op
def meshgrid(*args: Any, indexing: str = "xy") -> list[jax.Array]:
    """The coordinates of a grid, one array per axis."""
    return list(jnp.meshgrid(*map(array, args), indexing=indexing))


@op
def searchsorted(
    sorted_sequence: Any, values: Any, side: str = "left", out_type: Any = dtypes.int32
) -> jax.Array:
    """The indices at which values would be inserted into a sorted sequence."""
    found = jnp.searchsorted(array(sorted_sequence), array(values), side=side)
    return found.astype(dtypes.on_device(out_type))


@op
def sequence_mask(lengths: Any, maxlen: Any = None, dtype: Any = dtypes.bool) -> jax.Array:
    """A mask that is True for the first `lengths[i]` elements of row i."""
    numbers = array(lengths)
    size = int(np.max(np.asarray(numbers), initial=0)) if maxlen is None else static(maxlen)
    return (jnp.arange(size) < numbers[..., None]).astype(dtypes.on_device(dtype))


class _Unique(NamedTuple):
    y: jax.Array
    idx: jax.Array


@op
def unique(x: Any, out_idx: Any = dtypes.int32) -> _Unique:
    """The unique elements, in order of first occurrence, and for each element its index among them."""
    values, first, inverse = np.unique(np.asarray(x), return_index=True, return_inverse=True)
    order = np.argsort(first)
    numbers = np.argsort(order)[inverse]
    return _Unique(jnp.asarray(values[order]), jnp.asarray(numbers, dtypes.on_device(out_idx)))


@op
def histogram_fixed_width(
    values: Any, value_range: Any, nbins: int = 100, dtype: Any = dtypes.int32
) -> jax.Array:
    """Count the values in `nbins` equal bins; values outside the range go into the first or last bin."""
    low, high = array(value_range)
    places = jnp.floor((array(values).ravel() - low) / (high - low) * nbins).astype(jnp.int32)
    count = jnp.zeros(static(nbins), dtypes.on_device(dtype))
    return count.at[jnp.clip(places, 0, static(nbins) - 1)].add(1)


@op
def strided_slice(input_: Any, begin: Any, end: Any, strides: Any = None) -> jax.Array:
    """The part of an array from `begin` to `end` along each axis."""
    starts, stops = static(begin), static(end)
    steps = (1,) * len(starts) if strides is None else static(strides)
    return array(input_)[tuple(slice(*bounds) for bounds in zip(starts, stops, steps, strict=True))]


# Scans over rows.


@named
def foldl(fn: Callable[..., Any], elems: Any, initializer: Any = None) -> Any:
    """`fn(fn(fn(initializer, row 0), row 1), ...)`; without an initializer, start with the first row."""
    return _folded(fn, elems, initializer, reverse=False)[0]


@named
def foldr(fn: Callable[..., Any], elems: Any, initializer: Any = None) -> Any:
    """`foldl` from the last row to the first."""
    return _folded(fn, elems, initializer, reverse=True)[0]


@named
def scan(fn: Callable[..., Any], elems: Any, initializer: Any = None, reverse: bool = False) -> Any:
    """All intermediate results of `foldl`: `fn` takes the previous one and a row.

    >>> from replicax import tf
    >>> tf.scan(lambda total, x: total + x, tf.constant([1, 2, 3]))
    Array([1, 3, 6], dtype=int32)
    """
    return _folded(fn, elems, initializer, reverse=reverse)[1]


def _folded(fn: Callable[..., Any], elems: Any, initializer: Any, *, reverse: bool) -> tuple[Any, Any]:
    rows = jax.tree.map(array, elems)
    if initializer is None:
        edge = -1 if reverse else 0
        start = jax.tree.map(lambda x: x[edge], rows)
        rows = jax.tree.map(lambda x: x[:-1] if reverse else x[1:], rows)
    else:
        start = jax.tree.map(array, initializer)

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        new = jax.tree.map(lambda x, old: array(x).astype(old.dtype), fn(carry, row), carry)
        return new, new

    last, passed = jax.lax.scan(step, start, rows, reverse=reverse)
    if initializer is None:
        order = (lambda a, b: [b, a[None]]) if reverse else (lambda a, b: [a[None], b])
        passed = jax.tree.map(lambda a, b: jnp.concatenate(order(a, b)), start, passed)
    return last, passed


@named
def vectorized_map(fn: Callable[..., Any], elems: Any) -> Any:
    """Apply `fn` to all rows at once, with `jax.vmap`."""
    return jax.vmap(fn)(jax.tree.map(array, elems))
