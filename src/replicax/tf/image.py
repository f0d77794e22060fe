"""`tf.image`: resizing, cropping, flipping and colours; thin wrappers around `jax.image` and `jax.numpy`.

Images have shape (height, width, channels), optionally with a batch axis before that. Pillow decodes image
files on the host; see `tf.io`.
"""

from __future__ import annotations

import enum
from typing import Any

import jax
import jax.numpy as jnp

from replicax.tf import random
from replicax.tf._colours import (
    adjust_gamma,
    adjust_hue,
    adjust_saturation,
    convert_image_dtype,
    hsv_to_rgb,
    rgb_to_hsv,
    rgb_to_yiq,
    rgb_to_yuv,
    yiq_to_rgb,
    yuv_to_rgb,
)
from replicax.tf._missing import refuse
from replicax.tf._op import array, op, static
from replicax.tf.io._images import (
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
)

__all__ = [
    "ResizeMethod",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "central_crop",
    "convert_image_dtype",
    "crop_to_bounding_box",
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "encode_jpeg",
    "encode_png",
    "flip_left_right",
    "flip_up_down",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "pad_to_bounding_box",
    "per_image_standardization",
    "psnr",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_saturation",
    "resize",
    "resize_with_crop_or_pad",
    "resize_with_pad",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rgb_to_yiq",
    "rgb_to_yuv",
    "rot90",
    "stateless_random_brightness",
    "stateless_random_contrast",
    "stateless_random_crop",
    "stateless_random_flip_left_right",
    "stateless_random_flip_up_down",
    "stateless_random_hue",
    "stateless_random_saturation",
    "total_variation",
    "transpose",
    "yiq_to_rgb",
    "yuv_to_rgb",
]


class ResizeMethod(enum.StrEnum):
    """How `resize` computes pixels."""

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"


_METHODS = {"bilinear": "linear", "nearest": "nearest", "lanczos3": "lanczos3", "lanczos5": "lanczos5"}


@op
def resize(
    images: Any,
    size: Any,
    method: str = ResizeMethod.BILINEAR,
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
) -> jax.Array:
    """Resize images.

    Args:
        images: the images.
        size: height and width.
        method: a `ResizeMethod`, except "bicubic", "area", "gaussian" and "mitchellcubic", whose kernels
            JAX does not have.
        preserve_aspect_ratio: make the images as large as fits into `size`.
        antialias: when shrinking, average over all pixels that a new pixel covers.

    >>> from replicax import tf
    >>> tf.image.resize(tf.ones([4, 4, 3]), [2, 2]).shape
    (2, 2, 3)
    """
    if str(method) not in _METHODS:
        raise ValueError(
            f"method={str(method)!r} is not supported: JAX has {', '.join(_METHODS)}. (The kernel of its "
            "`cubic` differs from TensorFlow's.)"
        )
    x = array(images)
    height, width = static(size)
    if preserve_aspect_ratio:
        scale = min(height / x.shape[-3], width / x.shape[-2])
        height, width = round(x.shape[-3] * scale), round(x.shape[-2] * scale)
    shape = (*x.shape[:-3], height, width, x.shape[-1])
    resized = jax.image.resize(_floating(x), shape, _METHODS[str(method)], antialias=antialias)
    return resized.astype(x.dtype) if method == "nearest" else resized


def _floating(x: jax.Array) -> jax.Array:
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


@op
def flip_left_right(image: Any) -> jax.Array:
    """Mirror an image from left to right."""
    return jnp.flip(array(image), -2)


@op
def flip_up_down(image: Any) -> jax.Array:
    """Turn an image upside down."""
    return jnp.flip(array(image), -3)


@op
def rot90(image: Any, k: int = 1) -> jax.Array:
    """Rotate an image counter-clockwise by 90 degrees, `k` times."""
    return jnp.rot90(array(image), static(k), axes=(-3, -2))


@op
def transpose(image: Any) -> jax.Array:
    """Swap the height and width of an image."""
    return jnp.swapaxes(array(image), -3, -2)


@op
def crop_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> jax.Array:
    """Crop an image to a box."""
    x, top, left = array(image), static(offset_height), static(offset_width)
    height, width = static(target_height), static(target_width)
    if top + height > x.shape[-3] or left + width > x.shape[-2] or min(top, left) < 0:
        raise ValueError(
            f"the box from ({top}, {left}) of size ({height}, {width}) is not inside the image of size "
            f"{x.shape[-3:-1]}."
        )
    return x[..., top : top + height, left : left + width, :]


@op
def pad_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> jax.Array:
    """Pad an image with zeros to a larger size."""
    x, top, left = array(image), static(offset_height), static(offset_width)
    below, right = static(target_height) - top - x.shape[-3], static(target_width) - left - x.shape[-2]
    if min(top, left, below, right) < 0:
        raise ValueError(f"the image of size {x.shape[-3:-1]} at that offset does not fit into the target.")
    return jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(top, below), (left, right), (0, 0)])


@op
def central_crop(image: Any, central_fraction: float) -> jax.Array:
    """The middle of an image, `central_fraction` of its height and width."""
    x = array(image)
    top, left = (int((size - size * central_fraction) / 2) for size in x.shape[-3:-1])
    return x[..., top : x.shape[-3] - top, left : x.shape[-2] - left, :]


@op
def resize_with_crop_or_pad(image: Any, target_height: Any, target_width: Any) -> jax.Array:
    """Crop an image, or pad it with zeros, to another size, keeping it centered."""
    x, height, width = array(image), static(target_height), static(target_width)
    top, left = max(x.shape[-3] - height, 0) // 2, max(x.shape[-2] - width, 0) // 2
    x = crop_to_bounding_box(x, top, left, min(height, x.shape[-3]), min(width, x.shape[-2]))
    return pad_to_bounding_box(x, (height - x.shape[-3]) // 2, (width - x.shape[-2]) // 2, height, width)


@op
def resize_with_pad(
    image: Any,
    target_height: Any,
    target_width: Any,
    method: str = ResizeMethod.BILINEAR,
    antialias: bool = False,
) -> jax.Array:
    """Make an image as large as fits into a size, keeping its proportions, and pad the rest with zeros."""
    height, width = static(target_height), static(target_width)
    before = array(image).shape
    ratio = max(before[-3] / height, before[-2] / width)
    inner = [int(before[-3] / ratio), int(before[-2] / ratio)]
    x = resize(image, inner, method, antialias=antialias)
    return pad_to_bounding_box(x, (height - inner[0]) // 2, (width - inner[1]) // 2, height, width)


@op
def rgb_to_grayscale(images: Any) -> jax.Array:
    """Convert RGB images to one channel of brightness."""
    x = array(images)
    gray = _floating(x) @ jnp.asarray([0.2989, 0.587, 0.114], _floating(x).dtype)
    return gray[..., None].astype(x.dtype)


@op
def grayscale_to_rgb(images: Any) -> jax.Array:
    """Repeat the channel of grayscale images three times."""
    return jnp.repeat(array(images), 3, axis=-1)


@op
def adjust_brightness(image: Any, delta: Any) -> jax.Array:
    """Add `delta` to an image; integer images are scaled to floats and back."""
    x = array(image)
    return convert_image_dtype(convert_image_dtype(x, jnp.float32) + delta, x.dtype, saturate=True)


@op
def adjust_contrast(images: Any, contrast_factor: Any) -> jax.Array:
    """Scale the difference of each channel from its mean."""
    original = array(images)
    x = convert_image_dtype(original, jnp.float32)
    mean = jnp.mean(x, axis=(-3, -2), keepdims=True)
    return convert_image_dtype((x - mean) * contrast_factor + mean, original.dtype, saturate=True)


@op
def per_image_standardization(image: Any) -> jax.Array:
    """Scale an image to mean 0 and standard deviation 1."""
    x = _floating(array(image))
    axes = (-3, -2, -1)
    count = x.shape[-3] * x.shape[-2] * x.shape[-1]
    deviation = jnp.maximum(jnp.std(x, axis=axes, keepdims=True), 1 / jnp.sqrt(count))
    return (x - jnp.mean(x, axis=axes, keepdims=True)) / deviation


@op
def total_variation(images: Any) -> jax.Array:
    """The sum of the absolute differences between neighbouring pixels."""
    x, axes = array(images), (-3, -2, -1)
    down, across = jnp.abs(jnp.diff(x, axis=-3)), jnp.abs(jnp.diff(x, axis=-2))
    return jnp.sum(down, axis=axes) + jnp.sum(across, axis=axes)


@op
def psnr(a: Any, b: Any, max_val: Any) -> jax.Array:
    """The peak signal-to-noise ratio, in decibels."""
    x, y = convert_image_dtype(a, jnp.float32), convert_image_dtype(b, jnp.float32)
    largest = convert_image_dtype(jnp.asarray(max_val, array(a).dtype), jnp.float32)
    error = jnp.mean(jnp.square(x - y), axis=(-3, -2, -1))
    return 20 * jnp.log10(largest) - 10 * jnp.log10(error)


# Random augmentation: from the process's random stream, outside of compiled functions, or from a seed.


def _unit(seed: Any) -> Any:
    return random.uniform([], seed=seed)


@op
def random_flip_left_right(image: Any, seed: int | None = None) -> jax.Array:
    """Mirror an image from left to right, at random."""
    return jnp.where(_unit(seed) < 0.5, flip_left_right(image), array(image))


@op
def random_flip_up_down(image: Any, seed: int | None = None) -> jax.Array:
    """Turn an image upside down, at random."""
    return jnp.where(_unit(seed) < 0.5, flip_up_down(image), array(image))


@op
def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> jax.Array:
    """Add a random number to an image."""
    return adjust_brightness(image, (2 * _unit(seed) - 1) * max_delta)


@op
def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> jax.Array:
    """Scale the contrast of an image at random."""
    return adjust_contrast(image, lower + (upper - lower) * _unit(seed))


@op
def random_hue(image: Any, max_delta: float, seed: int | None = None) -> jax.Array:
    """Turn the colours of an image at random."""
    return adjust_hue(image, (2 * _unit(seed) - 1) * max_delta)


@op
def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> jax.Array:
    """Scale the saturation of an image at random."""
    return adjust_saturation(image, lower + (upper - lower) * _unit(seed))


@op
def random_crop(value: Any, size: Any, seed: int | None = None) -> jax.Array:
    """Crop an array to a given size at a random place."""
    whole = jnp.shape(array(value))
    return _cropped(value, size, random.uniform([len(whole)], seed=seed))


def _cropped(value: Any, size: Any, where: Any) -> jax.Array:
    x, sizes = array(value), static(size)
    room = jnp.asarray(x.shape) - jnp.asarray(sizes) + 1
    return jax.lax.dynamic_slice(x, list((where * room).astype(jnp.int32)), sizes)


@op
def stateless_random_brightness(image: Any, max_delta: float, seed: Any) -> jax.Array:
    """Add a number that depends on `seed` to an image."""
    return adjust_brightness(image, random.stateless_uniform([], seed, -max_delta, max_delta))


@op
def stateless_random_contrast(image: Any, lower: float, upper: float, seed: Any) -> jax.Array:
    """Scale the contrast of an image by a number that depends on `seed`."""
    return adjust_contrast(image, random.stateless_uniform([], seed, lower, upper))


@op
def stateless_random_hue(image: Any, max_delta: float, seed: Any) -> jax.Array:
    """Turn the colours of an image by a number that depends on `seed`."""
    return adjust_hue(image, random.stateless_uniform([], seed, -max_delta, max_delta))


@op
def stateless_random_saturation(image: Any, lower: float, upper: float, seed: Any) -> jax.Array:
    """Scale the saturation of an image by a number that depends on `seed`."""
    return adjust_saturation(image, random.stateless_uniform([], seed, lower, upper))


@op
def stateless_random_flip_left_right(image: Any, seed: Any) -> jax.Array:
    """Mirror an image from left to right or not, depending on `seed`."""
    flip = random.stateless_uniform([], seed) < 0.5
    return jnp.where(flip, flip_left_right(image), array(image))


@op
def stateless_random_flip_up_down(image: Any, seed: Any) -> jax.Array:
    """Turn an image upside down or not, depending on `seed`."""
    flip = random.stateless_uniform([], seed) < 0.5
    return jnp.where(flip, flip_up_down(image), array(image))


@op
def stateless_random_crop(value: Any, size: Any, seed: Any) -> jax.Array:
    """Crop an array to a given size at a place that depends on `seed`."""
    return _cropped(value, size, random.stateless_uniform([jnp.ndim(array(value))], seed))


__getattr__ = refuse(
    "tf.image",
    {
        **dict.fromkeys(["ssim", "ssim_multiscale", "sobel_edges"], "a library such as dm-pix"),
        **dict.fromkeys(
            ["draw_bounding_boxes", "non_max_suppression", "sample_distorted_bounding_box"],
            "your own code in `Dataset.map`",
        ),
        "crop_and_resize": "`jax.image.scale_and_translate` under `jax.vmap`",
        "extract_patches": "`jax.lax.conv_general_dilated_patches`",
    },
)
