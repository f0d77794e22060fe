"""`tf.nn`: activations, losses, convolutions and pooling; thin wrappers around `jax.nn` and `jax.lax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.tf._math import l2_normalize, sigmoid, softmax, tanh, top_k
from replicax.tf._missing import refuse
from replicax.tf._more_math import in_top_k, log_softmax, softsign, zero_fraction
from replicax.tf._more_nn import (
    conv1d,
    conv2d_transpose,
    crelu,
    depth_to_space,
    depthwise_conv2d,
    dropout,
    log_poisson_loss,
    space_to_depth,
    stateless_dropout,
    weighted_cross_entropy_with_logits,
)
from replicax.tf._op import array, op, rows_of, static
from replicax.training import compute_average_loss, scale_regularization_loss

__all__ = [
    "avg_pool",
    "avg_pool2d",
    "batch_normalization",
    "bias_add",
    "compute_average_loss",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "crelu",
    "depth_to_space",
    "depthwise_conv2d",
    "dropout",
    "elu",
    "embedding_lookup",
    "gelu",
    "in_top_k",
    "l2_loss",
    "l2_normalize",
    "leaky_relu",
    "log_poisson_loss",
    "log_softmax",
    "max_pool",
    "max_pool2d",
    "moments",
    "relu",
    "relu6",
    "scale_regularization_loss",
    "selu",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "silu",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softplus",
    "softsign",
    "space_to_depth",
    "sparse_softmax_cross_entropy_with_logits",
    "stateless_dropout",
    "swish",
    "tanh",
    "top_k",
    "weighted_cross_entropy_with_logits",
    "zero_fraction",
]


def _activation(fn: Callable[[Any], Any]) -> Callable[..., Any]:
    """An op that calls a function of `jax.nn`."""

    def activation(features: Any) -> jax.Array:
        return fn(array(features))

    activation.__name__ = activation.__qualname__ = fn.__name__
    activation.__doc__ = f"`jax.nn.{fn.__name__}`, element by element."
    return op(activation)


relu, relu6, elu = _activation(jax.nn.relu), _activation(jax.nn.relu6), _activation(jax.nn.elu)
selu, softplus = _activation(jax.nn.selu), _activation(jax.nn.softplus)


@op
def silu(features: Any, beta: float = 1.0) -> jax.Array:
    """`x * sigmoid(beta * x)`, element by element."""
    x = array(features)
    return x * jax.nn.sigmoid(beta * x)


swish = silu


@op
def gelu(features: Any, approximate: bool = False) -> jax.Array:
    """The Gaussian error linear unit; exact by default, as in TensorFlow."""
    return jax.nn.gelu(array(features), approximate=approximate)


@op
def leaky_relu(features: Any, alpha: float = 0.2) -> jax.Array:
    """`x`, or `alpha * x` where `x` is negative."""
    return jax.nn.leaky_relu(array(features), alpha)


@op
def softmax_cross_entropy_with_logits(labels: Any, logits: Any, axis: int = -1) -> jax.Array:
    """The cross entropy of distributions, one number per example."""
    return -jnp.sum(array(labels) * jax.nn.log_softmax(array(logits), static(axis)), axis)


@op
def sparse_softmax_cross_entropy_with_logits(labels: Any, logits: Any) -> jax.Array:
    """The cross entropy of class indices, one number per example.

    >>> from replicax import tf
    >>> tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[1], logits=[[0.0, 0.0]])
    Array([0.6931472], dtype=float32)
    """
    log_probabilities = jax.nn.log_softmax(array(logits))
    return -jnp.take_along_axis(log_probabilities, array(labels)[..., None], axis=-1)[..., 0]


@op
def sigmoid_cross_entropy_with_logits(labels: Any, logits: Any) -> jax.Array:
    """The cross entropy of independent binary labels, elementwise."""
    x, z = array(logits), array(labels)
    return jnp.maximum(x, 0) - x * z + jnp.log1p(jnp.exp(-jnp.abs(x)))


@op
def l2_loss(t: Any) -> jax.Array:
    """Half the sum of squares."""
    return jnp.sum(jnp.square(array(t))) / 2


@op
def moments(x: Any, axes: Any, keepdims: bool = False) -> tuple[jax.Array, jax.Array]:
    """Mean and variance over axes."""
    x, axes = array(x), tuple(np.atleast_1d(axes).tolist())
    return jnp.mean(x, axes, keepdims=keepdims), jnp.var(x, axes, keepdims=keepdims)


@op
def batch_normalization(
    x: Any, mean: Any, variance: Any, offset: Any, scale: Any, variance_epsilon: float
) -> jax.Array:
    """Normalize `x` with the given moments, then scale and shift it."""
    factor = jax.lax.rsqrt(array(variance) + variance_epsilon)
    factor = factor if scale is None else factor * array(scale)
    shift = 0 if offset is None else array(offset)
    return (array(x) - array(mean)) * factor + shift


@op
def bias_add(value: Any, bias: Any, data_format: str | None = None) -> jax.Array:
    """Add a bias to each channel."""
    x, bias = array(value), array(bias)
    return x + bias if not _channels_first(data_format) else x + bias.reshape(-1, *[1] * (x.ndim - 2))


@op
def embedding_lookup(params: Any, ids: Any, max_norm: float | None = None) -> jax.Array:
    """The rows of an embedding table."""
    rows = rows_of(params, ids)
    if max_norm is None:
        return rows
    length = jnp.linalg.norm(rows, axis=-1, keepdims=True)
    return rows * (max_norm / jnp.maximum(length, max_norm))


@op
def conv2d(
    input: Any, filters: Any, strides: Any, padding: Any, data_format: str = "NHWC", dilations: Any = None
) -> jax.Array:
    """A convolution of images; filters are (height, width, channels in, channels out)."""
    layout = "NCHW" if _channels_first(data_format) else "NHWC"
    return jax.lax.conv_general_dilated(
        array(input),
        array(filters),
        _spatial(strides, data_format),
        padding if isinstance(padding, str) else _margins(padding, data_format),
        rhs_dilation=_spatial(1 if dilations is None else dilations, data_format),
        dimension_numbers=(layout, "HWIO", layout),
    )


@op
def max_pool2d(input: Any, ksize: Any, strides: Any, padding: Any, data_format: str = "NHWC") -> jax.Array:
    """Max pooling."""
    x = array(input)
    least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return _pool(x, least, jax.lax.max, ksize, strides, padding, data_format)


@op
def avg_pool2d(input: Any, ksize: Any, strides: Any, padding: Any, data_format: str = "NHWC") -> jax.Array:
    """Average pooling; padding does not count."""
    x = array(input)
    total = _pool(x, 0.0, jax.lax.add, ksize, strides, padding, data_format)
    count = _pool(jnp.ones_like(x), 0.0, jax.lax.add, ksize, strides, padding, data_format)
    return total / count


avg_pool, max_pool = avg_pool2d, max_pool2d


def _pool(
    x: Any, start: Any, combine: Any, ksize: Any, strides: Any, padding: Any, data_format: str
) -> Any:
    window, steps = _window(ksize, data_format), _window(strides, data_format)
    return jax.lax.reduce_window(x, np.asarray(start, x.dtype), combine, window, steps, padding)


def _channels_first(data_format: str | None) -> bool:
    if data_format not in (None, "NHWC", "NCHW", "N...C", "NC..."):
        raise ValueError(f"data_format must be 'NHWC' or 'NCHW', got {data_format!r}.")
    return data_format in ("NCHW", "NC...")


def _spatial(sizes: Any, data_format: str) -> tuple[int, int]:
    """Height and width, from one number, two, or four in the order of the axes."""
    numbers = np.atleast_1d(sizes).tolist()
    if len(numbers) == 4:
        numbers = numbers[2:] if _channels_first(data_format) else numbers[1:3]
    height, width = numbers * 2 if len(numbers) == 1 else numbers
    return height, width


def _window(sizes: Any, data_format: str) -> tuple[int, ...]:
    spatial = _spatial(sizes, data_format)
    return (1, 1, *spatial) if _channels_first(data_format) else (1, *spatial, 1)


def _margins(padding: Any, data_format: str) -> list[tuple[int, int]]:
    pairs = [tuple(pair) for pair in np.asarray(padding).tolist()]
    return pairs[2:] if _channels_first(data_format) else pairs[1:3]


__getattr__ = refuse(
    "tf.nn",
    {
        "convolution": "`jax.lax.conv_general_dilated`",
        "conv3d": "`jax.lax.conv_general_dilated`",
        "ctc_loss": "`optax.ctc_loss`",
    },
)
