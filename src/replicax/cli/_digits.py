"""The demo's data and model, in plain NumPy and JAX.

The data are scikit-learn's 1797 scans of handwritten digits, 8 x 8 pixels each. The model has two
convolutions and two dense layers and is a pure function of its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Digits", "class_scores", "initial_weights", "load_digits", "shift_image"]

_NUM_TEST_DIGITS = 360
_SHAPES = {
    "conv1": (3, 3, 1, 32),
    "conv2": (3, 3, 32, 64),
    "dense1": (4 * 4 * 64, 128),
    "dense2": (128, 10),
}


@final
@dataclass(frozen=True)
class Digits:
    """Images of shape (count, 8, 8, 1), from 0 (paper) to 1 (ink), and their labels."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def load_digits() -> tuple[Digits, Digits]:
    """The training digits and the test digits; always the same split."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[:_NUM_TEST_DIGITS], order[_NUM_TEST_DIGITS:]
    labels = labels.astype(np.int32)
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])


def shift_image(key: Any, image: Any) -> jax.Array:
    """Augment an image: shift it at random by up to one pixel in each direction."""
    padded = jnp.pad(image, ((1, 1), (1, 1), (0, 0)))
    row, column = jax.random.randint(key, (2,), 0, 3)
    return jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)


def initial_weights(seed: int) -> dict[str, dict[str, Any]]:
    """Random kernels and zero biases, by layer."""
    rng = np.random.default_rng(seed)
    weights = {}
    for layer, shape in _SHAPES.items():
        scale = np.sqrt(2 / np.prod(shape[:-1]))
        kernel = rng.normal(scale=scale, size=shape).astype(np.float32)
        weights[layer] = {"kernel": kernel, "bias": np.zeros(shape[-1], np.float32)}
    return weights


def class_scores(weights: Any, images: Any) -> jax.Array:
    """The logits of the ten digits for each image: an array of shape (count, 10)."""
    x = jax.nn.relu(_convolve(images, **weights["conv1"]))
    x = jax.nn.relu(_convolve(x, **weights["conv2"]))
    x = x.reshape(len(x), 4, 2, 4, 2, x.shape[-1]).max((2, 4))  # max pooling over 2 x 2
    x = x.reshape(len(x), _SHAPES["dense1"][0])
    x = jax.nn.relu(x @ weights["dense1"]["kernel"] + weights["dense1"]["bias"])
    return x @ weights["dense2"]["kernel"] + weights["dense2"]["bias"]


def _convolve(x: Any, kernel: Any, bias: Any) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout) + jnp.asarray(
        bias
    )
