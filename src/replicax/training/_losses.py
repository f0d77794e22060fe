"""Losses as `tf.distribute` means them: the replicas' add up to that of the global batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.contexts import current, current_rows
from replicax.errors import CollectiveError
from replicax.training._microbatches import part_weight

__all__ = ["compute_average_loss", "scale_regularization_loss"]


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> Any:
    """This replica's part of the mean loss of the global batch: the sum over its examples, divided by all.

    Adding the parts of all replicas gives the mean over examples, and adding their gradients (what
    `rx.Optimizer` does) the gradient of that mean, whatever numbers of examples the replicas have. Padding
    counts for nothing.

    Args:
        per_example_loss: one loss for each example of this replica.
        sample_weight: weights of the examples, or None.
        global_batch_size: what to divide by; by default the number of examples of all replicas, which are
            counted. (`tf.nn.compute_average_loss` assumes that all have as many as this one.)

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = strategy.distribute_dataset(rx.from_arrays(jnp.arange(6.0)).batch(5))
    >>> def replica_loss(x):
    ...     return rx.compute_average_loss(x)
    >>> [float(strategy.reduce("SUM", strategy.run(replica_loss, args=(x,)), axis=None)) for x in dataset]
    [2.0, 5.0]
    """
    losses = jnp.asarray(per_example_loss)
    if losses.ndim == 0:
        raise CollectiveError(
            "compute_average_loss takes one loss for each example, got a scalar. Leave out the mean in "
            "your loss function: this divides by the number of examples of all replicas."
        )
    if sample_weight is not None:
        losses = losses * matched(sample_weight, losses, "sample_weight")
    dtype = losses.dtype
    is_small = dtype in (jnp.float16, jnp.bfloat16)
    if is_small:
        losses = losses.astype(jnp.float32)  # their sum may be too large for it, and so may their number
    mask = _mask_of(losses)
    if mask is not None:
        losses = jnp.where(mask.reshape(mask.shape + (1,) * (losses.ndim - 1)), losses, 0)
    total, rows = jnp.sum(losses), current_rows()
    if rows is not None:
        # The mean over the parts of a batch weights this one by its part of the examples; undo that.
        weight = jnp.asarray(part_weight(rows), total.dtype)
        total = total / jnp.where(weight == 0, 1, weight)
    count = _count_examples(losses.shape[0], mask) if global_batch_size is None else global_batch_size
    mean = total / jnp.maximum(jnp.asarray(count, total.dtype), 1)
    return mean.astype(dtype) if is_small else mean


def matched(value: Any, like: Any, what: str) -> Any:
    """`value` in a shape that multiplies `like` entry by entry: an axis of one at the end comes or goes.

    Raises `CollectiveError` for shapes that would be broadcast against each other to something larger.
    """
    array = jnp.asarray(value)
    if array.ndim == like.ndim + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim < like.ndim:
        array = array.reshape(array.shape + (1,) * (like.ndim - array.ndim))
    if jnp.broadcast_shapes(array.shape, like.shape) != like.shape:
        raise CollectiveError(f"{what} has the shape {jnp.shape(value)}, which does not fit {like.shape}.")
    return array


def _mask_of(losses: Any) -> Any:
    replica = current().replica
    mask = None if replica is None else replica.example_mask
    return mask if mask is not None and mask.shape[0] == losses.shape[0] else None


def _count_examples(num_rows: int, mask: Any) -> Any:
    """How many examples the batch has on all replicas, also if this is only a part of it."""
    replica, rows = current().replica, current_rows()
    own: Any = num_rows if rows is None else rows.total
    if mask is not None:
        assert replica is not None
        own = jnp.sum(replica._whole_mask)
    if replica is None or replica.num_replicas_in_sync == 1:
        return own
    if mask is None and replica._is_one_program:
        return own * replica.num_replicas_in_sync
    return jax.lax.stop_gradient(replica.all_reduce("SUM", jnp.asarray(own, jnp.float32)))


def scale_regularization_loss(regularization_loss: Any) -> Any:
    """A regularization loss, which every replica computes, divided by the number of replicas.

    Adding the replicas' losses then counts it once.

    Args:
        regularization_loss: a number, or several to be added.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> part = strategy.run(lambda: rx.scale_regularization_loss(jnp.float32(3.0)))
    >>> strategy.reduce("SUM", part, axis=None)
    Array(3., dtype=float32)
    """
    replica = current().replica
    if replica is None:
        raise CollectiveError(
            "scale_regularization_loss divides by the number of replicas, so it belongs into a replica "
            "function."
        )
    return jnp.sum(jnp.asarray(regularization_loss)) / replica.num_replicas_in_sync
