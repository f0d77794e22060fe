"""`tf.custom_gradient` on `jax.custom_vjp`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from replicax.tf._op import array

__all__ = ["custom_gradient"]


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that returns its result and its gradient function.

    The gradient function takes the upstream gradient of each result and returns one gradient per argument.
    It may close over values of `f`, which is called again in the backward pass. Variables that `f` reads
    get no gradient: pass their values as arguments.

    Args:
        f: `f(*args)` returns `(result, gradient_function)`; all arguments are positional.

    >>> from replicax import tf
    >>> @tf.custom_gradient
    ... def clipped(x):
    ...     return x * 3.0, lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)
    >>> x = tf.Variable(2.0)
    >>> with tf.GradientTape() as tape:
    ...     y = clipped(x) * 100.0
    >>> tape.gradient(y, x)
    Array(1., dtype=float32)
    """

    def forward(*arguments: Any) -> Any:
        return f(*arguments)[0]

    function = jax.custom_vjp(forward)

    def backward(arguments: Any, cotangent: Any) -> tuple[Any, ...]:
        result, gradient = f(*arguments)
        parts = jax.tree.leaves(cotangent) if isinstance(result, list | tuple) else [cotangent]
        found = gradient(*parts)
        found = tuple(found) if isinstance(found, list | tuple) else (found,)
        if len(found) != len(arguments):
            raise ValueError(
                f"tf.custom_gradient: the gradient function of {getattr(f, '__name__', f)!r} returned "
                f"{len(found)} gradients for {len(arguments)} arguments. Return one per argument."
            )
        return tuple(map(_fitted, found, arguments))

    function.defvjp(lambda *arguments: (forward(*arguments), arguments), backward)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise TypeError(
                f"tf.custom_gradient: pass the arguments {sorted(kwargs)} by position; keyword arguments "
                "get no gradient."
            )
        return function(*jax.tree.map(array, args))

    return call


def _fitted(gradient: Any, argument: Any) -> Any:
    """Convert a gradient for JAX: None becomes zeros."""
    return jax.numpy.zeros_like(argument) if gradient is None else array(gradient).astype(argument.dtype)
