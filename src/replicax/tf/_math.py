"""Arithmetic, reductions and linear algebra: thin wrappers around `jax.numpy`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.tf._op import array, binary, folding, op, static, unary
from replicax.values import IndexedSlices

__all__ = [
    "abs",
    "acos",
    "add",
    "add_n",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "atan",
    "ceil",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "cos",
    "cumsum",
    "divide",
    "einsum",
    "equal",
    "erf",
    "exp",
    "expm1",
    "floor",
    "floordiv",
    "floormod",
    "global_norm",
    "greater",
    "greater_equal",
    "is_finite",
    "is_inf",
    "is_nan",
    "l2_normalize",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_sigmoid",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "multiply_no_nan",
    "negative",
    "norm",
    "not_equal",
    "pow",
    "reciprocal",
    "reduce_all",
    "reduce_any",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "sort",
    "sqrt",
    "square",
    "squared_difference",
    "stop_gradient",
    "subtract",
    "tan",
    "tanh",
    "tensordot",
    "top_k",
    "truediv",
]


abs, acos, asin, atan = unary(jnp.abs), unary(jnp.arccos), unary(jnp.arcsin), unary(jnp.arctan)
ceil, cos, erf, exp, expm1 = (
    unary(jnp.ceil),
    unary(jnp.cos),
    unary(jax.scipy.special.erf),
    unary(jnp.exp),
    unary(jnp.expm1),
)
floor, log, log1p, negative, round = (
    unary(jnp.floor),
    unary(jnp.log),
    unary(jnp.log1p),
    unary(jnp.negative),
    unary(jnp.round),
)
rsqrt, sigmoid, sign, sin = unary(jax.lax.rsqrt), unary(jax.nn.sigmoid), unary(jnp.sign), unary(jnp.sin)
sqrt, square, tan, tanh = unary(jnp.sqrt), unary(jnp.square), unary(jnp.tan), unary(jnp.tanh)
reciprocal = unary(jnp.reciprocal)
is_finite, is_inf, is_nan, logical_not = (
    unary(jnp.isfinite),
    unary(jnp.isinf),
    unary(jnp.isnan),
    unary(jnp.logical_not),
)

add, subtract, multiply = binary(jnp.add), binary(jnp.subtract), binary(jnp.multiply)
divide, truediv, floordiv = binary(jnp.divide), binary(jnp.true_divide), binary(jnp.floor_divide)
floormod, mod, pow = binary(jnp.mod), binary(jnp.mod), binary(jnp.power)
maximum, minimum = binary(jnp.maximum), binary(jnp.minimum)
equal, not_equal = binary(jnp.equal), binary(jnp.not_equal)
less, less_equal = binary(jnp.less), binary(jnp.less_equal)
greater, greater_equal = binary(jnp.greater), binary(jnp.greater_equal)
logical_and, logical_or = binary(jnp.logical_and), binary(jnp.logical_or)
logical_xor = binary(jnp.logical_xor)


@op
def stop_gradient(input: Any) -> jax.Array:
    """The input, treated as a constant by gradients."""
    return jax.lax.stop_gradient(array(input))


@op
def log_sigmoid(x: Any) -> jax.Array:
    """The logarithm of the sigmoid."""
    return jax.nn.log_sigmoid(array(x))


@op
def squared_difference(x: Any, y: Any) -> jax.Array:
    """The square of the difference."""
    return jnp.square(array(x) - array(y))


@op
def multiply_no_nan(x: Any, y: Any) -> jax.Array:
    """The product; zero where `y` is zero, whatever `x` is."""
    return jnp.where(array(y) == 0, 0, array(x) * array(y))


@folding
def add_n(inputs: Sequence[Any]) -> jax.Array:
    """The sum of arrays of one shape."""
    return functools.reduce(jnp.add, map(array, inputs))


def _reduction(fn: Callable[..., Any], empty: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """An op that reduces over axes; `empty(dtype)` is the result for no elements."""

    def reduction(input_tensor: Any, axis: Any = None, keepdims: bool = False) -> jax.Array:
        x = array(input_tensor)
        of_none = {} if empty is None or x.size else {"initial": empty(x.dtype)}
        return fn(x, axis=static(axis), keepdims=keepdims, **of_none)

    reduction.__doc__ = f"`{fn.__module__}.{fn.__name__}` over `axis`; by default over all axes."
    reduction.__name__ = reduction.__qualname__ = fn.__name__
    return folding(reduction)


def _least(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _greatest(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


reduce_sum, reduce_prod = _reduction(jnp.sum), _reduction(jnp.prod)
reduce_max, reduce_min = _reduction(jnp.max, _least), _reduction(jnp.min, _greatest)
reduce_any, reduce_all = _reduction(jnp.any), _reduction(jnp.all)
reduce_std, reduce_variance = _reduction(jnp.std), _reduction(jnp.var)
reduce_logsumexp = _reduction(jax.nn.logsumexp)


@folding
def reduce_mean(input_tensor: Any, axis: Any = None, keepdims: bool = False) -> jax.Array:
    """The mean over `axis`, by default all axes. The mean of integers is an integer, as in TensorFlow."""
    x = array(input_tensor)
    mean = jnp.mean(x, axis=static(axis), keepdims=keepdims)
    return mean.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.integer) else mean


def _indexing(fn: Callable[..., Any]) -> Callable[..., Any]:
    def indexing(input: Any, axis: int = 0, output_type: Any = jnp.int32) -> jax.Array:
        return fn(array(input), axis=static(axis)).astype(jax.dtypes.canonicalize_dtype(output_type))

    indexing.__doc__ = f"`{fn.__module__}.{fn.__name__}` along `axis`, by default the first."
    indexing.__name__ = indexing.__qualname__ = fn.__name__
    return folding(indexing)


argmax, argmin = _indexing(jnp.argmax), _indexing(jnp.argmin)


@op
def sort(values: Any, axis: int = -1, direction: str = "ASCENDING") -> jax.Array:
    """Sort along an axis."""
    return jnp.sort(array(values), axis=static(axis), descending=_descending(direction))


@op
def argsort(values: Any, axis: int = -1, direction: str = "ASCENDING", stable: bool = False) -> jax.Array:
    """The indices that sort along an axis."""
    return jnp.argsort(array(values), axis=static(axis), descending=_descending(direction), stable=True)


def _descending(direction: str) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"direction must be 'ASCENDING' or 'DESCENDING', got {direction!r}.")
    return direction == "DESCENDING"


@op
def top_k(input: Any, k: int = 1, sorted: bool = True) -> tuple[jax.Array, jax.Array]:
    """The largest `k` elements of the last axis, and their indices."""
    values, indices = jax.lax.top_k(array(input), static(k))
    return values, indices


@folding
def cumsum(x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> jax.Array:
    """The cumulative sum along an axis."""
    x = array(x)
    turned = jnp.flip(x, axis) if reverse else x
    sums = jnp.cumsum(turned, axis)
    sums = sums - turned if exclusive else sums
    return jnp.flip(sums, axis) if reverse else sums


@op
def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any) -> Any:
    """Clip elements to the bounds."""
    return jnp.clip(array(t), array(clip_value_min), array(clip_value_max))


@op
def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None) -> jax.Array:
    """Scale an array down so that its norm is at most `clip_norm`."""
    t = array(t)
    squares = jnp.sum(jnp.square(t), axis=static(axes), keepdims=True)
    # The gradient of sqrt at 0 would be NaN.
    length = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
    return t * (clip_norm / jnp.maximum(length, clip_norm))


@op
def global_norm(t_list: Sequence[Any]) -> jax.Array:
    """The joint norm of all arrays."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(_values(t))) for t in t_list if t is not None))


@op
def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None
) -> tuple[list[Any], Any]:
    """Scale arrays down so that their joint norm is at most `clip_norm`; also returns that norm.

    If the norm is infinite or NaN, the arrays become NaN, as in TensorFlow.
    """
    length = array(global_norm(t_list) if use_norm is None else use_norm)
    scale = jnp.where(jnp.isfinite(length), clip_norm / jnp.maximum(length, clip_norm), jnp.nan)
    return [None if t is None else _scaled(t, scale) for t in t_list], length


def _values(t: Any) -> jax.Array:
    return array(t.values if isinstance(t, IndexedSlices) else t)


def _scaled(t: Any, scale: Any) -> Any:
    if isinstance(t, IndexedSlices):
        return IndexedSlices(t.values * scale, t.indices, t.dense_shape)
    return array(t) * scale


@op
def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
) -> jax.Array:
    """The product of matrices."""
    a, b = array(a), array(b)
    a = jnp.matrix_transpose(a) if transpose_a or adjoint_a else a
    b = jnp.matrix_transpose(b) if transpose_b or adjoint_b else b
    return jnp.matmul(jnp.conj(a) if adjoint_a else a, jnp.conj(b) if adjoint_b else b)


@op
def tensordot(a: Any, b: Any, axes: Any) -> jax.Array:
    """The sum of products over axes."""
    return jnp.tensordot(array(a), array(b), _pairs(axes))


def _pairs(axes: Any) -> Any:
    """The axes of `tensordot`: a number, or a pair of axes for each array."""
    return static(axes) if np.ndim(axes) == 0 else tuple(map(static, axes))


@op
def einsum(equation: str, *inputs: Any) -> jax.Array:
    """A sum of products, given by an equation."""
    return jnp.einsum(equation, *map(array, inputs))


@op
def norm(tensor: Any, ord: Any = "euclidean", axis: Any = None, keepdims: bool = False) -> jax.Array:
    """The norm; by default of the flattened array."""
    x = array(tensor)
    if axis is not None:
        return jnp.linalg.norm(x, None if ord == "euclidean" else ord, static(axis), keepdims)
    length = jnp.linalg.norm(x.ravel(), None if ord in ("euclidean", "fro") else ord)
    return length.reshape((1,) * x.ndim) if keepdims else length


@op
def l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12) -> jax.Array:
    """Scale an array to norm 1 along an axis."""
    x = array(x)
    square_sum = jnp.sum(jnp.square(x), axis=static(axis), keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square_sum, epsilon))


@op
def softmax(logits: Any, axis: int = -1) -> jax.Array:
    """Exponentials that add up to 1."""
    return jax.nn.softmax(array(logits), static(axis))
