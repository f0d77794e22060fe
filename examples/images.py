"""Generates small images of ten kinds, so the examples need no download."""

import numpy as np

SIZE, NUM_CLASSES = 12, 10


def make_images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` images, each a noisy copy of one of ten fixed patterns, and the patterns' numbers."""
    patterns = np.random.default_rng(0).normal(size=(NUM_CLASSES, SIZE, SIZE, 1))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, count)
    images = patterns[labels] + rng.normal(size=(count, SIZE, SIZE, 1))
    return images.astype(np.float32), labels.astype(np.int32)


def make_weights() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the initial weights of a small network for them: two convolutions and two dense layers."""
    rng = np.random.default_rng(1)
    shapes = {"conv1": (3, 3, 1, 8), "conv2": (3, 3, 8, 16), "dense1": (3 * 3 * 16, 32), "dense2": (32, 10)}
    kernels = {
        name: rng.normal(size=shape, scale=np.sqrt(2 / np.prod(shape[:-1]))).astype(np.float32)
        for name, shape in shapes.items()
    }
    return {name: (kernel, np.zeros(kernel.shape[-1], np.float32)) for name, kernel in kernels.items()}
