"""Less common functions of `tf.nn`: dropout, other convolutions and losses, space to depth."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.contexts import get_replica_context
from replicax.tf import random
from replicax.tf._op import array, op, static

__all__ = [
    "conv1d",
    "conv2d_transpose",
    "crelu",
    "depth_to_space",
    "depthwise_conv2d",
    "dropout",
    "log_poisson_loss",
    "space_to_depth",
    "stateless_dropout",
    "weighted_cross_entropy_with_logits",
]


@op
def dropout(x: Any, rate: Any, noise_shape: Any = None, seed: int | None = None) -> jax.Array:
    """Set elements to 0 with probability `rate`, and scale up the others.

    The mask comes from the process's random stream. In a compiled function, or for a different mask on each
    replica, use `stateless_dropout` or a `tf.keras.layers.Dropout`.

    >>> from replicax import tf
    >>> bool(tf.reduce_all(tf.nn.dropout(tf.ones([8]), rate=0.0) == 1.0))
    True
    """
    values = array(x)
    shape = values.shape if noise_shape is None else static(noise_shape)
    return _dropped(values, rate, random.uniform(shape, seed=seed))


@op
def stateless_dropout(
    x: Any, rate: Any, seed: Any, rng_alg: str = "auto_select", noise_shape: Any = None
) -> jax.Array:
    """`dropout` with a mask that depends only on `seed`, two integers, and on the replica."""
    values, words = array(x), array(seed)
    replica = get_replica_context()
    if replica is not None and replica.num_replicas_in_sync > 1:
        words = words + jnp.asarray([0, 1]) * replica.replica_id_in_sync_group
    shape = values.shape if noise_shape is None else static(noise_shape)
    return _dropped(values, rate, random.stateless_uniform(shape, words))


def _dropped(values: jax.Array, rate: Any, drawn: jax.Array) -> jax.Array:
    return jnp.where(drawn >= rate, values / (1 - jnp.asarray(rate, values.dtype)), 0).astype(values.dtype)


@op
def crelu(features: Any, axis: int = -1) -> jax.Array:
    """Concatenate `relu(x)` and `relu(-x)`."""
    x = array(features)
    return jax.nn.relu(jnp.concatenate([x, -x], static(axis)))


@op
def weighted_cross_entropy_with_logits(labels: Any, logits: Any, pos_weight: Any) -> jax.Array:
    """Binary cross entropy in which positive labels count `pos_weight` times."""
    z, x = array(labels), array(logits)
    weight = 1 + (array(pos_weight) - 1) * z
    return (1 - z) * x + weight * (jnp.log1p(jnp.exp(-jnp.abs(x))) + jax.nn.relu(-x))


@op
def log_poisson_loss(targets: Any, log_input: Any, compute_full_loss: bool = False) -> jax.Array:
    """The negative log likelihood of counts, up to a constant unless `compute_full_loss`."""
    z, x = array(targets), array(log_input)
    loss = jnp.exp(x) - z * x
    if not compute_full_loss:
        return loss
    stirling = z * jnp.log(z) - z + 0.5 * jnp.log(2 * jnp.pi * z)
    return loss + jnp.where((z >= 0) & (z <= 1), 0, stirling)


@op
def conv1d(
    input: Any, filters: Any, stride: Any, padding: str, data_format: str = "NWC", dilations: Any = None
) -> jax.Array:
    """A convolution of sequences; filters are (width, channels in, channels out)."""
    layout = {"NWC": "NHC", "NCW": "NCH"}[data_format]
    return jax.lax.conv_general_dilated(
        array(input),
        array(filters),
        (int(np.ravel(stride)[0]),),
        padding,
        rhs_dilation=(1 if dilations is None else int(np.ravel(dilations)[0]),),
        dimension_numbers=(layout, "HIO", layout),
    )


@op
def depthwise_conv2d(
    input: Any, filter: Any, strides: Any, padding: str, data_format: Any = None, dilations: Any = None
) -> jax.Array:
    """A convolution of each channel on its own; filters are (height, width, channels, multiplier)."""
    if data_format not in (None, "NHWC"):
        raise ValueError(f"data_format={data_format!r} is not supported: pass images as NHWC.")
    x, kernel = array(input), array(filter)
    height, width, channels, multiplier = kernel.shape
    return jax.lax.conv_general_dilated(
        x,
        kernel.reshape(height, width, 1, channels * multiplier),
        static(strides)[1:3],
        padding,
        rhs_dilation=(1, 1) if dilations is None else static(dilations),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=channels,
    )


@op
def conv2d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    strides: Any,
    padding: str = "SAME",
    data_format: str = "NHWC",
    dilations: Any = None,
) -> jax.Array:
    """A transposed convolution, the gradient of `conv2d`; filters are (height, width, out, in)."""
    if data_format != "NHWC" or dilations is not None:
        raise ValueError("pass images as NHWC, without dilations.")
    steps = np.atleast_1d(static(strides)).tolist()
    steps = steps * 2 if len(steps) == 1 else steps[1:3] if len(steps) == 4 else steps
    x, kernel, shape = array(input), array(filters), static(output_shape)

    def forward(image: Any) -> jax.Array:
        return jax.lax.conv_general_dilated(
            image, kernel, steps, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return jax.linear_transpose(forward, jax.ShapeDtypeStruct(shape, x.dtype))(x)[0]


@op
def depth_to_space(input: Any, block_size: int) -> jax.Array:
    """Rearrange channels into blocks of pixels."""
    x, size = array(input), static(block_size)
    batch, height, width, channels = x.shape
    blocks = x.reshape(batch, height, width, size, size, channels // size**2)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height * size, width * size, -1)


@op
def space_to_depth(input: Any, block_size: int) -> jax.Array:
    """Rearrange blocks of pixels into channels."""
    x, size = array(input), static(block_size)
    batch, height, width, channels = x.shape
    blocks = x.reshape(batch, height // size, size, width // size, size, channels)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height // size, width // size, -1)
