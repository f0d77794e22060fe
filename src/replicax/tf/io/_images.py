"""Decodes and encodes image files with Pillow, on the host."""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import OpArgumentError

__all__ = [
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "encode_jpeg",
    "encode_png",
]

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "tf.io.decode_image and similar functions need Pillow: pip install pillow."
        ) from error
    return Image


def _decoded(contents: Any, channels: int, frames: bool = False) -> np.ndarray:
    try:
        image = _pillow().open(io.BytesIO(as_bytes(contents)))
    except OSError as error:
        raise OpArgumentError(
            f"tf.io.decode_image got {len(as_bytes(contents))} bytes that are not an image Pillow can read."
        ) from error
    if not frames:
        return _pixels(image, channels)
    found = []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        found.append(_pixels(image, 3))
    return np.stack(found)


def _pixels(image: Any, channels: int) -> np.ndarray:
    if image.mode not in _MODES.values():
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    pixels = np.asarray(image.convert(_MODES[channels]) if channels else image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def as_bytes(contents: Any) -> bytes:
    """The bytes of a file, as `tf.io.read_file` and datasets return them."""
    found = contents.item() if isinstance(contents, np.ndarray | np.generic) else contents
    if not isinstance(found, bytes):
        raise TypeError(
            f"Expected the bytes of a file, as tf.io.read_file returns them, got {type(contents).__name__}."
        )
    return found


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = np.uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> jax.Array:
    """Decode an image file to an array of shape (height, width, channels).

    Args:
        contents: the bytes.
        channels: 1, 3 or 4; None or 0 means what the file has.
        dtype: uint8, or a float dtype for values from 0 to 1.
        name: no effect.
        expand_animations: whether an animation gets an axis for its frames; False takes the first frame.
    """
    animated = expand_animations and as_bytes(contents)[:3] == b"GIF"
    pixels = _decoded(contents, channels or 0, animated)
    if np.dtype(dtype).kind == "f":
        return jnp.asarray(pixels / np.float32(255), dtype)
    return jnp.asarray(pixels, dtype)


def decode_png(
    contents: Any, channels: int = 0, dtype: Any = np.uint8, name: str | None = None
) -> jax.Array:
    """Decode a PNG file."""
    return jnp.asarray(_decoded(contents, channels), dtype)


def decode_jpeg(
    contents: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> jax.Array:
    """Decode a JPEG file. Only `channels` is supported: Pillow has none of the other settings."""
    others = (ratio, fancy_upscaling, try_recover_truncated, acceptable_fraction, dct_method)
    if others != (1, True, False, 1, ""):
        raise NotImplementedError("tf.io.decode_jpeg: pass `channels` only; Pillow has no such settings.")
    return jnp.asarray(_decoded(contents, channels))


def decode_bmp(contents: Any, channels: int = 0, name: str | None = None) -> jax.Array:
    """Decode a BMP file."""
    return jnp.asarray(_decoded(contents, channels))


def decode_gif(contents: Any, name: str | None = None) -> jax.Array:
    """Decode the frames of a GIF file to an array of shape (frames, height, width, 3)."""
    return jnp.asarray(_decoded(contents, 3, frames=True))


def _encoded(image: Any, kind: str, **settings: Any) -> bytes:
    pixels, file = np.asarray(image), io.BytesIO()
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    _pillow().fromarray(pixels).save(file, kind, **settings)
    return file.getvalue()


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> bytes:
    """Encode an image as a PNG file."""
    return _encoded(image, "PNG", **({} if compression < 0 else {"compress_level": compression}))


def encode_jpeg(image: Any, format: str = "", quality: int = 95, name: str | None = None) -> bytes:
    """Encode an image as a JPEG file."""
    return _encoded(image, "JPEG", quality=quality)
