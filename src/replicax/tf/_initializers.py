"""`tf.zeros_initializer` and similar classes, which create the initial values of variables."""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp

from replicax.tf import random
from replicax.tf._op import array
from replicax.tf._tensors import ones, zeros
from replicax.tf.dtypes import float32, on_device

__all__ = [
    "constant_initializer",
    "ones_initializer",
    "random_normal_initializer",
    "random_uniform_initializer",
    "zeros_initializer",
]


@final
class zeros_initializer:
    """Zeros.

    >>> from replicax import tf
    >>> tf.Variable(tf.zeros_initializer()(shape=[2])).numpy()
    array([0., 0.], dtype=float32)
    """

    def __call__(self, shape: Any, dtype: Any = float32) -> jax.Array:
        """The initial value."""
        return zeros(shape, dtype)


@final
class ones_initializer:
    """Ones."""

    def __call__(self, shape: Any, dtype: Any = float32) -> jax.Array:
        """The initial value."""
        return ones(shape, dtype)


@final
class constant_initializer:
    """A value that is broadcast to the shape."""

    def __init__(self, value: Any = 0) -> None:
        self._value = value

    def __call__(self, shape: Any, dtype: Any = None) -> jax.Array:
        """The initial value."""
        x = array(self._value)
        x = x if dtype is None else x.astype(on_device(dtype))
        return x.reshape(shape) if x.size > 1 else jnp.broadcast_to(x, shape)


@final
class random_normal_initializer:
    """Numbers from a normal distribution."""

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None) -> None:
        self._arguments, self._seed = (mean, stddev), seed

    def __call__(self, shape: Any, dtype: Any = float32) -> jax.Array:
        """The initial value."""
        return random.normal(shape, *self._arguments, dtype=dtype, seed=self._seed)


@final
class random_uniform_initializer:
    """Numbers from a uniform distribution."""

    def __init__(self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None) -> None:
        self._arguments, self._seed = (minval, maxval), seed

    def __call__(self, shape: Any, dtype: Any = float32) -> jax.Array:
        """The initial value."""
        return random.uniform(shape, *self._arguments, dtype=dtype, seed=self._seed)
