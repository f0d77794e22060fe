"""Losses that add up over the replicas to the loss of the global batch, as in `tf.distribute`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.contexts import BatchMask, Rows, current
from replicax.errors import CollectiveError
from replicax.training._microbatches import part_weight, sum_over_replicas
from replicax.training._padding import per_row, rows_that_count
from replicax.values import FIND

__all__ = ["compute_average_loss", "compute_weighted_loss", "matched", "scale_regularization_loss"]


def compute_average_loss(
    per_example_loss: Any,
    sample_weight: Any = None,
    global_batch_size: Any = None,
    *,
    example_mask: Any = FIND,
) -> jax.Array:
    """This replica's share of the mean loss over the global batch.

    That is the sum over its own examples, divided by the number of examples on all replicas. The shares
    of all replicas add up to the mean, and their gradients (which `rx.Optimizer` adds) to the gradient of
    the mean, however many examples each replica has. Padding does not count.

    Args:
        per_example_loss: one loss per example of this replica.
        sample_weight: weights of the examples, or None.
        global_batch_size: the divisor; by default the examples of all replicas are counted.
            (`tf.nn.compute_average_loss` assumes that every replica has as many as this one.)
        example_mask: a boolean per loss, False for padding; None if all losses count. By default the mask
            of the padded batch that the losses are computed from.

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
            "your loss function: compute_average_loss divides by the number of examples on all replicas."
        )
    if losses.size != losses.shape[0]:
        raise CollectiveError(
            f"compute_average_loss takes one loss for each example, got shape {losses.shape}. For the "
            "(weighted) mean over all entries, write `rx.compute_weighted_loss(losses, weights)`. To "
            "divide only by the number of examples, as TensorFlow does, sum each example's losses first: "
            f"`jnp.sum(losses, axis={tuple(range(1, losses.ndim))})`."
        )
    if sample_weight is not None:
        losses = losses * matched(sample_weight, losses, "sample_weight")
    mask = rows_that_count([losses], example_mask, "losses", _ADVICE)
    wide = _widened(losses if mask is None else jnp.where(per_row(mask.now, losses), losses, 0))
    count = _count_examples(losses.shape[0], mask) if global_batch_size is None else global_batch_size
    return _share(jnp.sum(wide), count, losses.dtype)


_ADVICE = "Call `rx.compute_weighted_loss(losses)` for losses of shape (batch, ...). "


def compute_weighted_loss(losses: Any, weights: Any = None, *, example_mask: Any = FIND) -> jax.Array:
    """This replica's share of a weighted mean over the global batch, such as the mean over all tokens.

    That is the sum of `losses * weights` on this replica, divided by the sum of the weights on all
    replicas. The shares of all replicas add up to the weighted mean, and their gradients to its gradient,
    whatever rows and weights each replica has. Padding has no weight. With
    `value_and_grad(microbatches=...)` the weights of all parts are added up first.

    Args:
        losses: losses of any shape with one row per example: (batch, tokens), for example.
        weights: the weights of the losses, or of the rows; numbers or booleans. By default every loss
            counts once.
        example_mask: a boolean per row, False for padding; None if all rows count. By default the mask of
            the padded batch that the losses are computed from.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> losses = np.array([[1.0, 5.0, 0.0], [3.0, 0.0, 0.0], [6.0, 5.0, 4.0]], np.float32)
    >>> lengths = np.array([2, 1, 3])
    >>> def replica_loss(losses, lengths):
    ...     return rx.compute_weighted_loss(losses, jnp.arange(3) < lengths[:, None])
    >>> (batch,) = strategy.distribute_dataset(rx.from_arrays((losses, lengths)).batch(3))
    >>> strategy.reduce("SUM", strategy.run(replica_loss, args=batch), axis=None)    # 24 / 6
    Array(4., dtype=float32)
    """
    losses = jnp.asarray(losses)
    if losses.ndim == 0:
        raise CollectiveError(
            "compute_weighted_loss takes losses with one row for each example, got a scalar. Leave out "
            "the mean in your loss function: compute_weighted_loss divides by the sum of the weights."
        )
    wide = _widened(losses)
    weights = matched(1 if weights is None else weights, losses, "weights").astype(wide.dtype)
    weights = jnp.broadcast_to(weights, losses.shape)
    mask = rows_that_count([losses], example_mask, "losses", _ADVICE)
    if mask is not None:
        weights = jnp.where(per_row(mask.now, losses), weights, 0)
    # 0 * NaN is NaN, so select instead of multiplying.
    total = jnp.sum(jnp.where(weights == 0, 0, wide * weights))
    own, rows = jax.lax.stop_gradient(jnp.sum(weights)), current().rows
    sum_of_weights = sum_over_replicas([own])[0] if rows is None else rows.weights.total(own)
    return _share(total, jnp.where(sum_of_weights == 0, 1, sum_of_weights), losses.dtype)


def _widened(losses: Any) -> Any:
    """Convert small floats to float32, which can hold their sum and their count."""
    return losses.astype(jnp.promote_types(losses.dtype, jnp.float32))


def _share(total: Any, divisor: Any, dtype: Any) -> Any:
    """The share of this replica, or of a part of its batch, in a mean."""
    rows = current().rows
    if rows is not None:
        # `value_and_grad` weights the loss of each part by its share of the examples; undo that here.
        weight = jnp.asarray(part_weight(rows), total.dtype)
        total = total / jnp.where(weight == 0, 1, weight)
    mean = total / jnp.asarray(divisor, total.dtype)
    return mean.astype(dtype) if dtype in (jnp.float16, jnp.bfloat16) else mean


def matched(value: Any, like: Any, what: str) -> Any:
    """`value` reshaped to broadcast to `like`: per-row values gain axes of size 1, a column loses its axis.

    Raises:
        CollectiveError: the shapes would broadcast to something larger than `like`.
    """
    array = jnp.asarray(value)
    if array.ndim == like.ndim + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim < like.ndim:
        array = array.reshape(array.shape + (1,) * (like.ndim - array.ndim))
    fits = array.ndim == like.ndim and all(
        size in (1, wanted) for size, wanted in zip(array.shape, like.shape, strict=True)
    )
    if not fits:
        raise CollectiveError(
            f"{what} has shape {jnp.shape(value)}, which does not broadcast to {like.shape}. Pass one "
            "value for each row, or an array of that shape."
        )
    return array


def _count_examples(num_losses: int, mask: BatchMask | None) -> Any:
    """How many examples the batch has on all replicas, even if this is only a part of it."""
    replica, rows = current().replica, current().rows
    own: Any = num_losses if rows is None else _count_in_all_parts(num_losses, rows)
    if mask is not None:
        own = jnp.sum(_whole(mask, rows))
    if replica is not None and mask is None and replica._are_alike:
        own = own * replica.num_replicas_in_sync
    else:
        (own,) = sum_over_replicas([own])
    return jnp.maximum(own, 1)


def _whole(mask: BatchMask, rows: Rows | None) -> Any:
    """The mask of the whole batch."""
    if mask.whole is None and rows is not None:
        raise CollectiveError(
            "compute_average_loss(example_mask=...) with value_and_grad(microbatches=...): a part of the "
            "batch does not know how many examples the other parts have. Also pass `global_batch_size`, or "
            "call `rx.compute_weighted_loss(losses, example_mask=...)`."
        )
    return mask.now if mask.whole is None else mask.whole


def _count_in_all_parts(num_losses: int, rows: Rows) -> int:
    """How many losses the whole batch has if this part of it has `num_losses`."""
    here = rows.stop - rows.start
    if num_losses % here:
        raise CollectiveError(
            f"compute_average_loss got {num_losses} losses for a part of {here} rows with "
            "value_and_grad(microbatches=...), so it can't tell how many the whole batch has. Pass "
            "the same number of losses for each row, or `global_batch_size`, or give losses that do not "
            "count the weight 0 in `rx.compute_weighted_loss(losses, weights)`."
        )
    return num_losses // here * rows.total


def scale_regularization_loss(regularization_loss: Any) -> jax.Array:
    """A regularization loss divided by the number of replicas.

    Every replica computes the full loss, so the sum over the replicas then counts it once.

    Args:
        regularization_loss: a scalar, or an array or list of scalars to add up.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> part = strategy.run(lambda: rx.scale_regularization_loss(jnp.float32(3.0)))
    >>> strategy.reduce("SUM", part, axis=None)
    Array(3., dtype=float32)
    """
    replica = current().replica
    if replica is None:
        raise CollectiveError(
            "scale_regularization_loss divides by the number of replicas, so call it in a replica function."
        )
    return jnp.sum(jnp.asarray(regularization_loss)) / replica.num_replicas_in_sync
