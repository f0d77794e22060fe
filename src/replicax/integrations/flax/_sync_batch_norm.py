"""`SyncBatchNorm`: batch normalization over the examples of all replicas."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from replicax.contexts import Examples, current
from replicax.errors import CollectiveError

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(nnx.BatchNorm):
    """`nnx.BatchNorm` with the mean and variance of the global batch.

    The results are the same as on one device, for any number of replicas and any number of examples on
    each; padding is ignored. It costs one `all_reduce` per layer and call. Outside of replica functions,
    and with running averages, it is `nnx.BatchNorm`. It takes the same arguments except `axis_name`.

    >>> from flax import nnx
    >>> from replicax.integrations import flax as rx_flax
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     norm = rx_flax.adopt(rx_flax.SyncBatchNorm(1, momentum=0.5, rngs=nnx.Rngs(0)))
    >>> (batch,) = strategy.distribute_dataset(rx.from_arrays(jnp.array([[1.0], [2.0], [6.0]])).batch(4))
    >>> normalized = strategy.run(norm, args=(batch,))
    >>> norm.mean[...]                                        # half of (1 + 2 + 6) / 3
    Array([1.5], dtype=float32)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("axis_name") is not None or kwargs.get("axis_index_groups") is not None:
            raise ValueError(
                "SyncBatchNorm always combines the statistics of all replicas. Leave out axis_name and "
                "axis_index_groups."
            )
        super().__init__(*args, **kwargs)

    def __call__(self, x: Any, use_running_average: bool | None = None, *, mask: Any = None) -> Any:
        """Normalize `x`.

        Args:
            x: this replica's examples.
            use_running_average: use the running averages without updating them.
            mask: the positions to include, as in `nnx.BatchNorm`; padding is never included.
        """
        running = self.use_running_average if use_running_average is None else use_running_average
        replica = current().replica
        if running is not False or replica is None:
            return super().__call__(x, use_running_average, mask=mask)
        mask = _without_padding(replica._examples, mask, x)
        if replica.num_replicas_in_sync == 1 and mask is None:
            return super().__call__(x, use_running_average)
        scale = None if self.scale is None else self.scale[...]
        bias = None if self.bias is None else self.bias[...]
        all_ = (x, self.mean[...], self.var[...], scale, bias)
        x, _, _, scale, bias = self.promote_dtype(all_, dtype=self.dtype)
        axes = tuple(i for i in range(x.ndim) if i != self.axis % x.ndim)
        mean, variance = self._moments(replica, x, axes, mask)
        for average, new in ((self.mean, mean), (self.var, variance)):
            moved = self.momentum * average[...] + (1 - self.momentum) * new
            average[...] = jax.lax.stop_gradient(moved)
        factor = jax.lax.rsqrt(variance + self.epsilon)
        factor = factor if scale is None else factor * scale
        result = (x - jnp.expand_dims(mean, axes)) * jnp.expand_dims(factor, axes)
        result = result if bias is None else result + jnp.expand_dims(bias, axes)
        return jnp.asarray(result, x.dtype)

    def _moments(self, replica: Any, x: Any, axes: tuple[int, ...], mask: Any) -> tuple[Any, Any]:
        x = jnp.asarray(x, jnp.promote_types(jnp.result_type(x), jnp.float32))
        count = jnp.sum(jnp.broadcast_to(True if mask is None else mask, x.shape), axes, dtype=x.dtype)

        def summed(value: Any) -> Any:
            return jnp.sum(value, axes, where=mask)

        if self.use_fast_variance:
            total, squares, count = replica.all_reduce("SUM", [summed(x), summed(x * x), count])
            count = jnp.maximum(count, 1)
            mean = total / count
            return mean, jnp.maximum(0, squares / count - mean * mean)
        total, count = replica.all_reduce("SUM", [summed(x), count])
        count = jnp.maximum(count, 1)
        mean = total / count
        centred = x - jnp.expand_dims(mean, axes)
        return mean, replica.all_reduce("SUM", summed(centred * centred)) / count


def _without_padding(examples: Examples | None, mask: Any, x: Any) -> Any:
    """`mask` with the padded rows of `x` masked out; None if nothing is masked."""
    here = current()
    here.frame.require_own_trace()  # a cached trace would bake in the mask
    if examples is None:
        return mask
    origin = examples.find([x], here.rows)
    if isinstance(origin, str):
        raise CollectiveError(f"SyncBatchNorm got an array of shape {x.shape}: {origin}.")
    if origin is None:
        return mask
    rows = examples.mask(origin, here.rows).now.reshape(-1, *(1,) * (x.ndim - 1))
    return rows if mask is None else jnp.logical_and(rows, mask)
