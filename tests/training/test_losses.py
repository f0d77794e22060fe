"""Losses whose parts add up to the mean over the global batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CollectiveError

from .helpers import close, each, mirrored, parts, total

PARTIAL = ["exact", "pad"]
X = np.arange(1.0, 12.0, dtype=np.float32)  # eleven rows in batches of eight: eight, then three


def sums(strategy, mode, replica_fn, partial_batch="exact", x=X, batch=8):
    """What the replicas' results add up to, for each batch."""
    step = mode(lambda x: total(strategy, strategy.run(replica_fn, args=(x,))))
    data = rx.from_arrays(x).batch(batch)
    options = rx.InputOptions(partial_batch=partial_batch)
    return [float(step(rows)) for rows in strategy.distribute_dataset(data, options)]


@pytest.mark.parametrize("partial_batch", PARTIAL)
def test_the_parts_add_up_to_the_mean_over_examples(strategy, mode, partial_batch):
    found = sums(strategy, mode, lambda x: rx.compute_average_loss(x**2), partial_batch)
    close(found, [np.mean(X[:8] ** 2), np.mean(X[8:] ** 2)])


@pytest.mark.parametrize("partial_batch", PARTIAL)
def test_weighted_losses_are_divided_by_the_number_of_examples(mode, partial_batch):
    strategy = mirrored(3)
    found = sums(
        strategy,
        mode,
        lambda x: rx.compute_average_loss(x, sample_weight=jnp.where(x > 5, 2.0, 0.5)),
        partial_batch,
    )
    weighted = X * np.where(X > 5, 2.0, 0.5)
    close(found, [np.mean(weighted[:8]), np.mean(weighted[8:])])


def test_a_given_batch_size_is_what_is_divided_by(strategy, mode):
    found = sums(strategy, mode, lambda x: rx.compute_average_loss(x, global_batch_size=8))
    close(found, [np.mean(X[:8]), np.sum(X[8:]) / 8])


def test_losses_with_more_axes_are_refused_with_the_choices(two, mode):
    """TensorFlow divides the sum of all by the number of rows: ones of shape (4, 7) give 7."""
    x = each(two, lambda i: np.ones((4, 7), np.float32))
    with pytest.raises(CollectiveError, match=r"\(4, 7\).*compute_weighted_loss.*jnp.sum"):
        mode(lambda x: two.run(rx.compute_average_loss, args=(x,)))(x)
    ones = each(two, lambda i: np.ones((4, 1), np.float32))
    close(mode(lambda x: total(two, two.run(rx.compute_average_loss, args=(x,))))(ones), 1.0)


@pytest.mark.parametrize("partial_batch", PARTIAL)
def test_gradients_of_partial_batches_are_those_of_the_whole(mode, partial_batch):
    strategy = mirrored(8)
    with strategy.scope():
        w = rx.Variable(2.0)

    def replica_fn(x):
        return rx.grad(lambda x: rx.compute_average_loss(jnp.sqrt(w * x)), w)(x)

    found = sums(strategy, mode, replica_fn, partial_batch)
    slope = jax.grad(lambda w, x: jnp.mean(jnp.sqrt(w * x)))
    close(found, [slope(2.0, X[:8]), slope(2.0, X[8:])])


def test_nothing_flows_back_through_the_count(two, mode):
    with two.scope():
        w = rx.Variable(2.0)
    x = each(two, lambda i: np.ones(i + 1, np.float32))
    step = mode(
        lambda x: two.run(lambda x: rx.grad(lambda x: rx.compute_average_loss(w * x), w)(x), args=(x,))
    )
    close(np.stack(parts(two, step(x))), [1 / 3, 2 / 3])


def test_without_a_strategy_it_is_the_mean(mode):
    close(mode(rx.compute_average_loss)(jnp.arange(4.0)), 1.5)


def test_no_examples_at_all_are_no_loss(two, mode):
    x = each(two, lambda i: np.ones(0, np.float32))
    assert mode(lambda x: total(two, two.run(rx.compute_average_loss, args=(x,))))(x) == 0


def test_weights_with_an_axis_more_are_those_of_the_examples():
    """As in TensorFlow, where labels and weights often have the shape (batch, 1)."""
    losses, weights = jnp.array([1.0, 2.0, 4.0]), jnp.array([[1.0], [0.0], [1.0]])
    close(rx.compute_average_loss(losses, sample_weight=weights), 5 / 3)


def test_a_scalar_is_refused():
    with pytest.raises(CollectiveError, match="one loss for each example"):
        rx.compute_average_loss(jnp.float32(1.0))


def test_regularization_counts_once(strategy, mode):
    with strategy.scope():
        w = rx.Variable([1.0, 2.0])

    def replica_fn():
        return rx.value_and_grad(lambda: rx.scale_regularization_loss(jnp.sum(w**2)), w)()

    loss, gradient = mode(lambda: total(strategy, strategy.run(replica_fn)))()
    close(loss, 5.0)
    close(gradient, [2.0, 4.0])


def test_several_regularization_losses_are_added(two):
    close(total(two, two.run(lambda: rx.scale_regularization_loss([1.0, 2.0]))), 3.0)


def test_regularization_belongs_into_replicas(two):
    with two.scope(), pytest.raises(CollectiveError, match="replica function"):
        rx.scale_regularization_loss(jnp.float32(1.0))


def test_regularization_counts_once_with_an_empty_replica(mode):
    strategy = mirrored(3)

    def replica_fn(x):
        return rx.compute_average_loss(x) + rx.scale_regularization_loss(jnp.float32(6.0))

    close(sums(strategy, mode, replica_fn, x=X[:2], batch=2), [1.5 + 6.0])


def test_small_floats_are_added_in_float32():
    losses = jnp.full(8192, 10.0, jnp.float16)  # their sum is too large for float16
    average = rx.compute_average_loss(losses)
    assert average.dtype == jnp.float16
    assert float(average) == 10.0
    assert float(rx.compute_average_loss(jnp.ones(70000, jnp.float16))) == 1.0


def test_weights_decide_about_the_dtype_of_an_average():
    losses = jnp.ones(4, jnp.float16)
    assert rx.compute_average_loss(losses, sample_weight=jnp.ones(4, jnp.float32)).dtype == jnp.float32
    assert rx.compute_average_loss(losses, sample_weight=jnp.ones(4, jnp.float16)).dtype == jnp.float16


@jax.jit
def jitted(w, x):
    return rx.compute_average_loss((x * w) ** 2)


@jax.checkpoint
def rematerialized(w, x):
    return rx.compute_average_loss((x * w) ** 2)


@pytest.mark.parametrize("kept", [jitted, rematerialized])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_trace_that_jax_keeps_of_a_full_batch_is_not_that_of_a_padded_one(two, kept, microbatches):
    """The mask is no argument of the function."""
    with two.scope():
        w = rx.Variable(2.0)
    gradient = rx.value_and_grad(lambda x: kept(w.value, x), w, microbatches=microbatches)
    for partial_batch, count in (("exact", 4), ("pad", 7), ("pad", 3)):  # all of one shape
        step = rx.function(lambda x: total(two, two.run(gradient, args=(x,))))
        options = rx.InputOptions(partial_batch=partial_batch)
        batches = two.distribute_dataset(rx.from_arrays(X[:count]).batch(4), options)
        for start, x in enumerate(batches):
            rows = X[:count][4 * start :][:4]
            loss, slope = step(x)
            close(loss, np.mean((2 * rows) ** 2))
            close(slope, np.mean(4 * rows**2))
