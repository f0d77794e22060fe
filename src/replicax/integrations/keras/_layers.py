"""Batch normalization in replica functions.

Empty replicas: the last batch of an epoch may have fewer rows than there are replicas. The mean of zero
rows is NaN, which would stay in the moving averages forever.

`synchronized=True`: statistics over the examples of all replicas, which Keras supports only on TensorFlow.
In `fit`, statistics are always those of the global batch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from replicax.contexts import current, has_strategy

__all__ = ["accepting_synchronized", "moments_of_all_replicas", "normalizing_some_rows"]


def normalizing_some_rows(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make `BatchNormalization.call` use its moving averages, without updating them, for an empty batch."""

    @functools.wraps(call)
    def call_some(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        alone = has_strategy() and current().replica is not None and not self.synchronized
        if alone and 0 in inputs.shape:
            training = False
        return call(self, inputs, training=training, mask=mask)

    return call_some


def accepting_synchronized(init: Callable[..., None]) -> Callable[..., None]:
    """Make `BatchNormalization.__init__` accept `synchronized=True`."""

    @functools.wraps(init)
    def call(self: Any, *args: Any, synchronized: bool = False, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.synchronized = synchronized

    with_signature: Any = call
    with_signature.__signature__ = inspect.signature(init)  # Keras inspects it to build the config
    return call


def moments_of_all_replicas(moments: Callable[..., Any]) -> Callable[..., Any]:
    """Make `BatchNormalization._moments` cover all replicas' examples if the layer is synchronized."""

    @functools.wraps(moments)
    def call(self: Any, inputs: Any, mask: Any) -> Any:
        replica = current().replica if has_strategy() else None
        if not self.synchronized or mask is not None:
            return moments(self, inputs, mask)
        axes = tuple(self._reduction_axes)
        x = jnp.asarray(inputs, jnp.promote_types(inputs.dtype, jnp.float32))
        count = jnp.asarray(x.size // x.shape[self.axis], x.dtype)
        sums = jnp.sum(x, axes), jnp.sum(jnp.square(x), axes), count
        total, squares, count = sums if replica is None else replica.all_reduce("SUM", sums)
        mean = total / count
        variance = squares / count - jnp.square(mean)
        return mean.astype(inputs.dtype), variance.astype(inputs.dtype)

    return call
