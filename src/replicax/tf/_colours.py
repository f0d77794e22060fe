"""Colours of images: their dtypes, hue, saturation and other colour spaces."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.tf._op import array, op
from replicax.tf.dtypes import on_device

__all__ = [
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "convert_image_dtype",
    "hsv_to_rgb",
    "rgb_to_hsv",
    "rgb_to_yiq",
    "rgb_to_yuv",
    "yiq_to_rgb",
    "yuv_to_rgb",
]

_YIQ = (
    (0.299, 0.59590059, 0.2115),
    (0.587, -0.27455667, -0.52273617),
    (0.114, -0.32134392, 0.31119955),
)
_YUV = (
    (0.299, -0.14714119, 0.61497538),
    (0.587, -0.28886916, -0.51496512),
    (0.114, 0.43601035, -0.10001026),
)
_FROM_YIQ = ((1.0, 1.0, 1.0), (0.95598634, -0.27201283, -1.10674021), (0.6208248, -0.64720424, 1.70423049))
_FROM_YUV = ((1.0, 1.0, 1.0), (0.0, -0.394642334, 2.03206185), (1.13988303, -0.58062185, 0.0))


@op
def convert_image_dtype(image: Any, dtype: Any, saturate: bool = False) -> jax.Array:
    """Convert an image to another dtype: floats are from 0 to 1, integers from 0 to their maximum."""
    x, wanted = array(image), on_device(dtype)
    is_float, to_float = (jnp.issubdtype(d, jnp.floating) for d in (x.dtype, wanted))
    if x.dtype == wanted or (is_float and to_float):
        return x.astype(wanted)
    if to_float:
        return x.astype(wanted) / jnp.iinfo(x.dtype).max
    if is_float:
        scaled = x * (jnp.iinfo(wanted).max + 0.5)
        return (jnp.clip(scaled, 0, jnp.iinfo(wanted).max) if saturate else scaled).astype(wanted)
    return (x.astype(jnp.float32) / jnp.iinfo(x.dtype).max * jnp.iinfo(wanted).max).astype(wanted)


@op
def rgb_to_hsv(images: Any) -> jax.Array:
    """Hue, saturation and value of RGB images, all from 0 to 1."""
    x = array(images)
    red, green, blue = x[..., 0], x[..., 1], x[..., 2]
    value, lowest = jnp.max(x, axis=-1), jnp.min(x, axis=-1)
    spread = value - lowest
    divisor = jnp.where(spread > 0, spread, 1)
    hue = jnp.select(
        [value == red, value == green],
        [(green - blue) / divisor, 2 + (blue - red) / divisor],
        4 + (red - green) / divisor,
    )
    saturation = jnp.where(value > 0, spread / jnp.where(value > 0, value, 1), 0)
    return jnp.stack([jnp.where(spread > 0, hue / 6 % 1, 0), saturation, value], axis=-1)


@op
def hsv_to_rgb(images: Any) -> jax.Array:
    """The inverse of `rgb_to_hsv`."""
    x = array(images)
    hue, saturation, value = x[..., 0, None], x[..., 1, None], x[..., 2, None]
    ramp = jnp.abs((6 * hue + jnp.asarray([0, 4, 2], x.dtype)) % 6 - 3) - 1  # of each of the channels
    return value * (1 + saturation * (jnp.clip(ramp, 0, 1) - 1))


@op
def rgb_to_yiq(images: Any) -> jax.Array:
    """RGB images in the colour space YIQ."""
    return array(images) @ jnp.asarray(_YIQ)


@op
def yiq_to_rgb(images: Any) -> jax.Array:
    """The inverse of `rgb_to_yiq`."""
    return array(images) @ jnp.asarray(_FROM_YIQ)


@op
def rgb_to_yuv(images: Any) -> jax.Array:
    """RGB images in the colour space YUV."""
    return array(images) @ jnp.asarray(_YUV)


@op
def yuv_to_rgb(images: Any) -> jax.Array:
    """The inverse of `rgb_to_yuv`."""
    return array(images) @ jnp.asarray(_FROM_YUV)


@op
def adjust_hue(image: Any, delta: Any) -> jax.Array:
    """Rotate the hue by `delta`, a fraction of the full circle."""
    x = array(image)
    hsv = rgb_to_hsv(convert_image_dtype(x, jnp.float32))
    turned = hsv.at[..., 0].set((hsv[..., 0] + delta) % 1)
    return convert_image_dtype(hsv_to_rgb(turned), x.dtype, saturate=True)


@op
def adjust_saturation(image: Any, saturation_factor: Any) -> jax.Array:
    """Multiply the saturation, clipped to 1."""
    x = array(image)
    hsv = rgb_to_hsv(convert_image_dtype(x, jnp.float32))
    scaled = hsv.at[..., 1].set(jnp.clip(hsv[..., 1] * saturation_factor, 0, 1))
    return convert_image_dtype(hsv_to_rgb(scaled), x.dtype, saturate=True)


@op
def adjust_gamma(image: Any, gamma: Any = 1, gain: Any = 1) -> jax.Array:
    """`gain * image**gamma`, with the image scaled to 0 to 1."""
    x = array(image)
    return convert_image_dtype(gain * convert_image_dtype(x, jnp.float32) ** gamma, x.dtype, saturate=True)
