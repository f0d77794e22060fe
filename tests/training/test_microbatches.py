"""`value_and_grad(microbatches=k)`: a batch in parts gives what the whole batch gives."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import CollectiveError, InputError

from .helpers import ON_READ, close, collectives, each, mirrored, total

PARTIAL = ["exact", "pad"]
X = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)  # eight rows, then three
W = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)


def losses(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2, axis=-1)


def expected(x):
    return jax.value_and_grad(lambda w: jnp.mean(losses(w, x)))(W)


def run(strategy, mode, replica_fn, partial_batch="exact", x=X, batch=8):
    step = mode(lambda x: total(strategy, strategy.run(replica_fn, args=(x,))))
    options = rx.InputOptions(partial_batch=partial_batch)
    return [step(b) for b in strategy.distribute_dataset(rx.from_arrays(x).batch(batch), options)]


@pytest.mark.parametrize("partial_batch", PARTIAL)
@pytest.mark.parametrize("k", [2, 3])
def test_parts_give_what_the_whole_batch_gives(strategy, k, partial_batch):
    with strategy.scope():
        w = rx.Variable(W)

    def replica_fn(x):
        return rx.value_and_grad(lambda x: rx.compute_average_loss(losses(w.value, x)), w, microbatches=k)(
            x
        )

    found = run(strategy, rx.function, replica_fn, partial_batch)
    for (loss, gradient), rows in zip(found, (X[:8], X[8:]), strict=True):
        close(loss, expected(rows)[0])
        close(gradient, expected(rows)[1])


@pytest.mark.parametrize("partial_batch", PARTIAL)
def test_parts_give_what_the_whole_batch_gives_eagerly(partial_batch):
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(W)

    def replica_fn(x):
        return rx.value_and_grad(lambda x: rx.compute_average_loss(losses(w.value, x)), w, microbatches=3)(
            x
        )

    found = run(strategy, lambda fn: fn, replica_fn, partial_batch)
    for (loss, gradient), rows in zip(found, (X[:8], X[8:]), strict=True):
        close(loss, expected(rows)[0])
        close(gradient, expected(rows)[1])


@pytest.mark.parametrize("k", [1, 2, 4, 8, 11, 20])
def test_a_plain_mean_in_any_number_of_parts(k, mode):
    w = rx.Variable(W)
    step = mode(rx.value_and_grad(lambda x: jnp.mean(losses(w.value, x)), w, microbatches=k))
    loss, gradient = step(jnp.asarray(X))
    close(loss, expected(X)[0])
    close(gradient, expected(X)[1])


@pytest.mark.parametrize("partial_batch", PARTIAL)
@pytest.mark.parametrize("k", [1, 2])
def test_regularization_counts_once_with_an_empty_replica(k, partial_batch):
    """Two rows for three replicas: the third has nothing to average, but its part of the penalty."""
    strategy = mirrored(3)
    with strategy.scope():
        w = rx.Variable(W)

    def replica_fn(x):
        def loss(x):
            penalty = rx.scale_regularization_loss(jnp.sum(w**2))
            return rx.compute_average_loss(losses(w.value, x)) + penalty

        return rx.value_and_grad(loss, w, microbatches=k)(x)

    # Padding needs a full batch to know the size.
    found = run(strategy, rx.function, replica_fn, partial_batch, X[:8], 6)
    for (loss, gradient), rows in zip(found, (X[:6], X[6:8]), strict=True):
        close(loss, expected(rows)[0] + np.sum(W**2))
        close(gradient, expected(rows)[1] + 2 * W)


def test_sample_weights_are_cut_too(mode):
    w = rx.Variable(W)
    weights = np.arange(11, dtype=np.float32)

    def loss(x, *, weights):
        return rx.compute_average_loss(losses(w.value, x), sample_weight=weights)

    value, gradient = mode(rx.value_and_grad(loss, w, microbatches=3))(X, weights=weights)
    wanted, slope = jax.value_and_grad(lambda w: jnp.sum(losses(w, X) * weights) / 11)(W)
    close(value, wanted)
    close(gradient, slope)


def test_a_given_batch_size_works_in_parts(two):
    with two.scope():
        w = rx.Variable(W)

    def replica_fn(x):
        def loss(x):
            return rx.compute_average_loss(losses(w.value, x), global_batch_size=8)

        return rx.value_and_grad(loss, w, microbatches=2)(x)

    (full, partial) = run(two, rx.function, replica_fn)
    close(full[1], expected(X[:8])[1])
    close(partial[1], expected(X[8:])[1] * 3 / 8)


def test_what_else_is_returned_comes_as_a_list(mode):
    w = rx.Variable(W)

    def loss(x):
        each_loss = losses(w.value, x)
        return jnp.mean(each_loss), each_loss

    (_, aux), _ = mode(rx.value_and_grad(loss, w, has_aux=True, microbatches=3))(jnp.asarray(X))
    assert isinstance(aux, list)
    assert sorted(len(part) for part in aux) == [3, 4, 4]
    close(jnp.concatenate(aux), losses(W, X))


def test_writes_are_made_for_each_part_in_turn(mode):
    w, count, last = rx.Variable(W), rx.Variable(0), rx.Variable(0.0)

    def loss(x):
        count.assign_add(x.shape[0])
        last.assign(0.5 * last + x[0, 0])
        return jnp.mean(losses(w.value, x))

    mode(rx.grad(loss, w, microbatches=2))(jnp.asarray(X))
    assert count.value == 11
    close(last.value, 0.5 * X[0, 0] + X[5, 0])


@pytest.mark.parametrize("partial_batch", PARTIAL)
def test_metrics_in_parts_see_every_example_once(mode, partial_batch):
    strategy = mirrored(3)
    with strategy.scope():
        w, metric = rx.Variable(W), rx.Mean()

    def replica_fn(x):
        def loss(x):
            found = losses(w.value, x)
            metric.update_state(found)
            return rx.compute_average_loss(found)

        return rx.grad(loss, w, microbatches=2)(x)

    run(strategy, mode, replica_fn, partial_batch)
    close(metric.result(), np.mean(losses(W, X)))
    close(metric.count.read_value(), 11.0)


def test_the_mask_in_a_part_is_that_of_its_rows():
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(W)
    shapes = []

    def replica_fn(x):
        def loss(x):
            mask = rx.get_replica_context().example_mask
            shapes.append((x.shape[0], None if mask is None else mask.shape[0]))
            return rx.compute_average_loss(losses(w.value, x))

        return rx.grad(loss, w, microbatches=2)(x)

    run(strategy, rx.function, replica_fn, "pad")
    assert set(shapes) == {
        (2, 2),
        (4, 4),
    }  # also called with twice as many rows, to see which values have them


def test_the_gradients_are_reduced_once():
    strategy = mirrored(4)

    def found(k):
        with strategy.scope():
            w, b = rx.Variable(W), rx.Variable(jnp.zeros(2))
            optimizer = rx.Optimizer(optax.sgd(0.1))

        def replica_fn(x):
            def loss(x):
                return rx.compute_average_loss(losses(w.value, x) + jnp.sum(b.value))

            gradients = rx.grad(loss, [w, b], microbatches=k)(x)
            optimizer.apply_gradients(zip(gradients, [w, b], strict=True))

        step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
        return collectives(step, each(strategy, lambda i: X[:8]), optimized=False)

    assert len(found(4)) == len(found(1)) == 1


def test_a_training_run_in_parts_is_a_training_run(mode):
    results = []
    for k in (1, 3):
        strategy = mirrored(2)
        with strategy.scope():
            w = rx.Variable(W)
            optimizer = rx.Optimizer(optax.adam(0.01))

        def replica_fn(x, w=w, k=k, optimizer=optimizer):
            loss_fn = lambda x: rx.compute_average_loss(losses(w.value, x))  # noqa: E731
            loss, gradient = rx.value_and_grad(loss_fn, w, microbatches=k)(x)
            optimizer.apply_gradients([(gradient, w)])
            return loss

        for _ in range(3):
            run(strategy, mode, replica_fn)
        results.append(np.asarray(w.value))
    close(results[0], results[1])


def test_keys_are_cut_like_rows_and_a_single_key_is_not(mode):
    w = rx.Variable(W)
    key = jax.random.key(0)

    def loss(x, keys, key):
        noise = jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys)
        return jnp.mean(losses(w.value, x + noise + jax.random.normal(key, (3,))))

    arguments = jnp.asarray(X), rx.example_keys(key, jnp.arange(11)), key
    whole, parts = (mode(rx.value_and_grad(loss, w, microbatches=k))(*arguments) for k in (1, 4))
    close(parts[0], whole[0])
    close(parts[1], whole[1])


def test_arguments_with_different_numbers_of_rows_are_refused():
    w = rx.Variable(1.0)
    step = rx.value_and_grad(lambda x, y: w * jnp.sum(x) * jnp.sum(y), w, microbatches=2)
    with pytest.raises(InputError, match=r"\[3, 4\]"):
        step(jnp.ones(3), jnp.ones(4))
    with pytest.raises(InputError, match="none"):
        rx.value_and_grad(lambda: w**2, w, microbatches=2)()


def test_parts_of_parts_are_refused():
    w = rx.Variable(1.0)
    inner = rx.grad(lambda x: w**2 * jnp.mean(x), w, microbatches=2)
    with pytest.raises(InputError, match="inside another"):
        rx.grad(inner, w, microbatches=2)(jnp.ones(4))


# Losses that are not one per row.


@pytest.mark.parametrize("k", [2, 3])
def test_losses_per_token_in_parts_give_what_the_whole_batch_gives(two, mode, k):
    """Flattened, five for each row."""
    strategy = two
    x = np.random.default_rng(2).normal(size=(11, 5, 3)).astype(np.float32)
    with strategy.scope():
        w = rx.Variable(W)

    def replica_fn(x):
        def loss(x):
            return rx.compute_average_loss(losses(w.value, x).reshape(-1))

        return rx.value_and_grad(loss, w, microbatches=k)(x)

    found = run(strategy, mode, replica_fn, x=x)
    for (loss, gradient), rows in zip(found, (x[:8], x[8:]), strict=True):
        close(loss, expected(rows)[0])
        close(gradient, expected(rows)[1])


def test_a_number_of_losses_that_does_not_follow_from_the_rows_is_refused():
    w = rx.Variable(W)
    step = rx.grad(lambda x: rx.compute_average_loss(losses(w.value, x)[:-1]), w, microbatches=2)
    with pytest.raises(CollectiveError, match=r"4 losses.*5 rows"):
        step(jnp.asarray(X))


# Parts without examples.


def moving_mean(strategy):
    with strategy.scope():
        return rx.Variable(1.0, trainable=False, aggregation="MEAN")


@pytest.mark.parametrize("make", [rx.get_strategy, lambda: mirrored(2), lambda: mirrored(3)])
def test_more_parts_than_rows_write_no_nan(make, mode):
    """Three rows in the last batch: at most three parts, and as many writes."""
    strategy = make()
    with strategy.scope():
        w = rx.Variable(W)
    moving = moving_mean(strategy)

    def replica_fn(x):
        def loss(x):
            moving.assign(0.5 * moving + 0.5 * jnp.mean(x))
            return rx.compute_average_loss(losses(w.value, x))

        return rx.value_and_grad(loss, w, microbatches=12)(x)

    found = run(strategy, mode, replica_fn)
    for (loss, gradient), rows in zip(found, (X[:8], X[8:]), strict=True):
        close(loss, expected(rows)[0])
        close(gradient, expected(rows)[1])
    assert np.isfinite(moving.value)


def test_a_part_without_rows_is_not_called(mode):
    w = rx.Variable(W)
    sizes = []

    def loss(x):
        sizes.append(x.shape[0])
        return jnp.mean(losses(w.value, x))

    (_, aux), _ = mode(
        rx.value_and_grad(lambda x: (loss(x), x.shape[0]), w, has_aux=True, microbatches=20)
    )(jnp.asarray(X))
    assert set(sizes) == {1}
    assert len(aux) == 11


def test_parts_that_are_padding_write_nothing(mode):
    """Three rows of eight on two replicas: two and one, padded to four; parts of two rows."""
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(W)
        count = rx.Variable(0.0, trainable=False, aggregation="SUM")
        last = rx.Variable(-1.0, synchronization=ON_READ, aggregation="MEAN")
    moving = moving_mean(strategy)

    def replica_fn(x):
        def loss(x):
            mask = rx.get_replica_context().example_mask[:, None]
            mean = jnp.mean(x, where=mask)  # not a number without examples
            moving.assign(0.5 * moving + 0.5 * mean)
            count.assign_add(mean / mean)
            last.assign(mean)
            return rx.compute_average_loss(losses(w.value, x))

        return rx.value_and_grad(loss, w, microbatches=4)(x)

    found = run(strategy, mode, replica_fn, "pad")
    close(found[1][1], expected(X[8:])[1])
    full = [np.mean([np.mean(X[i]), np.mean(X[4 + i])]) for i in range(4)]
    wanted = 1.0
    for mean in full:
        wanted = 0.5 * wanted + 0.5 * mean
    first = 0.5 * wanted + 0.5 * np.mean([np.mean(X[8]), np.mean(X[10])])
    second = np.mean([0.5 * first + 0.5 * np.mean(X[9]), first])  # the other replica has no example left
    close(moving.value, np.float32(second))
    close(count.value, 8.0 + 3.0)
    close(last.value, np.mean([np.mean(X[9]), np.mean(X[10])]))
