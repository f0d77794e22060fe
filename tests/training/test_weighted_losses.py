"""`rx.compute_weighted_loss`: a weighted mean over the global batch, however the batch is cut."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import CollectiveError, ReplicaxError

from .helpers import close, collectives, each, mirrored, total

PARTIAL = ["exact", "pad"]
ROWS, TOKENS = 11, 5  # batches of eight rows, then three
X = np.random.default_rng(0).normal(size=(ROWS, TOKENS, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(3,)).astype(np.float32)
LENGTHS = np.random.default_rng(2).integers(1, TOKENS + 1, size=ROWS)
MASK = (np.arange(TOKENS) < LENGTHS[:, None]).astype(np.float32)


def losses(w, x):
    return jnp.tanh(x @ w) ** 2 + 1.0


def expected(rows, penalty=0.0):
    def mean(w):
        weights = MASK[rows]
        return jnp.sum(losses(w, X[rows]) * weights) / np.sum(weights) + penalty * jnp.sum(w**2)

    return jax.value_and_grad(mean)(W)


def run(strategy, mode, loss, w, partial_batch="exact", microbatches=1):
    """The loss and gradient of each batch."""

    def replica_fn(x, mask):
        return rx.value_and_grad(loss, w, microbatches=microbatches)(x, mask)

    step = mode(lambda x, mask: total(strategy, strategy.run(replica_fn, args=(x, mask))))
    data = rx.from_arrays((X, MASK)).batch(8)
    options = rx.InputOptions(partial_batch=partial_batch)
    return [step(*batch) for batch in strategy.distribute_dataset(data, options)]


def check(found, penalty=0.0):
    for (loss, gradient), rows in zip(found, (slice(8), slice(8, None)), strict=True):
        close(loss, expected(rows, penalty)[0])
        close(gradient, expected(rows, penalty)[1])


def check_weighted(strategy, mode, partial_batch, microbatches=1):
    with strategy.scope():
        w = rx.Variable(W)

    def loss(x, mask):
        return rx.compute_weighted_loss(losses(w.value, x), mask)

    check(run(strategy, mode, loss, w, partial_batch, microbatches))


@pytest.mark.parametrize("partial_batch", PARTIAL)
def test_the_parts_add_up_to_the_weighted_mean(strategy, partial_batch):
    check_weighted(strategy, rx.function, partial_batch)


@pytest.mark.parametrize("microbatches", [2, 3, 8])
@pytest.mark.parametrize("partial_batch", PARTIAL)
def test_the_parts_of_parts_add_up_too(partial_batch, microbatches):
    check_weighted(mirrored(1), rx.function, partial_batch, microbatches)
    check_weighted(mirrored(3), rx.function, partial_batch, microbatches)


@pytest.mark.parametrize("partial_batch", PARTIAL)
def test_the_parts_of_parts_add_up_for_a_sharded_variable(partial_batch):
    strategy = rx.ShardedStrategy(["CPU:0", "CPU:1", "CPU:2"], min_shard_bytes=1)
    check_weighted(strategy, rx.function, partial_batch, microbatches=2)


@pytest.mark.parametrize(("partial_batch", "microbatches"), [("exact", 3), ("pad", 1)])
def test_eager_replicas_add_up_too(partial_batch, microbatches):
    check_weighted(mirrored(2), lambda fn: fn, partial_batch, microbatches)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_several_kinds_of_terms_in_one_loss(two, microbatches):
    """A weighted mean, twice, a mean over examples, and a penalty."""
    with two.scope():
        w = rx.Variable(W)

    def loss(x, mask):
        found = losses(w.value, x)
        return (
            0.5 * rx.compute_weighted_loss(found, mask)
            + 0.5 * rx.compute_weighted_loss(found, 3.0 * mask)
            + 0.0 * rx.compute_average_loss(jnp.sum(found, axis=1))
            + rx.scale_regularization_loss(0.1 * jnp.sum(w**2))
        )

    check(run(two, rx.function, loss, w, microbatches=microbatches), penalty=0.1)


def test_precision_and_metrics_go_together_with_microbatches(two):
    with two.scope():
        w, metric = rx.Variable(W), rx.Sum()

    def replica_fn(x, mask):
        def loss(x, mask):
            metric.update_state(mask)
            return rx.compute_weighted_loss(losses(w.value, x), mask)

        options = {"microbatches": 2, "precision": rx.MixedPrecision()}
        return rx.value_and_grad(loss, w, **options)(x, mask)

    step = rx.function(lambda x, mask: total(two, two.run(replica_fn, args=(x, mask))))
    (batch,) = two.distribute_dataset(rx.from_arrays((X[:8], MASK[:8])).batch(8))
    loss, _ = step(*batch)
    close(loss, expected(slice(8))[0], rtol=2e-2)
    close(metric.result(), np.sum(MASK[:8]))


def test_without_weights_every_entry_counts(mode):
    close(mode(rx.compute_weighted_loss)(jnp.ones((8, 7))), 1.0)
    close(mode(rx.compute_weighted_loss)(jnp.arange(6.0).reshape(2, 3)), 2.5)


def test_weights_of_rows_or_entries():
    values = jnp.array([[1.0, 2.0], [5.0, 6.0]])
    close(rx.compute_weighted_loss(values, jnp.array([1.0, 3.0])), (1 + 2 + 15 + 18) / 8)
    close(rx.compute_weighted_loss(values, jnp.array([[True, False], [False, True]])), 3.5)
    with pytest.raises(CollectiveError, match=r"weights.*\(3,\).*\(2, 2\)"):
        rx.compute_weighted_loss(values, jnp.ones(3))


def test_no_weight_at_all_is_no_loss(two, mode):
    x = each(two, lambda i: np.ones((2, 3), np.float32))
    loss = mode(
        lambda x: total(two, two.run(lambda x: rx.compute_weighted_loss(x, jnp.zeros((2, 3))), args=(x,)))
    )(x)
    assert loss == 0


def test_losses_without_weight_may_be_nan(mode):
    values = jnp.array([1.0, jnp.nan, 3.0])
    close(mode(rx.compute_weighted_loss)(values, jnp.array([1.0, 0.0, 1.0])), 2.0)


def test_a_scalar_is_refused():
    with pytest.raises(CollectiveError, match="got a scalar"):
        rx.compute_weighted_loss(jnp.float32(1.0))


def test_nothing_flows_back_through_the_sum_of_weights():
    w = rx.Variable(2.0)
    gradient = rx.grad(lambda: rx.compute_weighted_loss(jnp.ones(2) * w, jnp.ones(2) * w), w)()
    # d(sum(l * w) / W)/dw with W held fixed at 4: both factors depend on w.
    close(gradient, 2.0)


def test_flattened_losses_of_a_padded_batch_are_refused_on_the_first_batch(two, mode):
    """Which of them are padding can't be known."""
    data = rx.from_arrays((X, MASK)).batch(8)
    batches = two.distribute_dataset(data, rx.InputOptions(partial_batch="pad"))

    def weighted(x, mask):
        return rx.compute_weighted_loss(losses(W, x).reshape(-1), mask.reshape(-1))

    def average(x, mask):
        return rx.compute_average_loss(losses(W, x).reshape(-1))

    for replica_fn in (weighted, average):
        step = mode(lambda x, mask, fn=replica_fn: two.run(fn, args=(x, mask)))
        with pytest.raises(CollectiveError, match=r"20 losses.*padded batch of 4 rows"):
            step(*next(iter(batches)))


def test_one_scalar_travels_for_each_weighted_loss():
    strategy = mirrored(4)

    def found(k):
        with strategy.scope():
            w = rx.Variable(W)
            optimizer = rx.Optimizer(optax.sgd(0.1))

        def replica_fn(x):
            def loss(x):
                return rx.compute_weighted_loss(losses(w.value, x), jnp.ones(x.shape[:2]))

            optimizer.apply_gradients(rx.grad(loss, w, microbatches=k)(x), w)

        step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
        return len(collectives(step, each(strategy, lambda i: X[:8]), optimized=False))

    assert found(1) == found(4) == 2


def test_in_parts_it_can_not_be_inside_another_trace():
    w = rx.Variable(W)
    inner = jax.jit(lambda x: rx.compute_weighted_loss(losses(w.value, x)))
    with pytest.raises(ReplicaxError, match="compute_weighted_loss"):
        rx.grad(inner, w, microbatches=2)(jnp.asarray(X))


def test_every_part_must_make_the_same_calls():
    w = rx.Variable(W)

    def loss(x):
        found = rx.compute_weighted_loss(losses(w.value, x))
        return found + rx.compute_weighted_loss(losses(w.value, x)) if x.shape[0] == 6 else found

    with pytest.raises(CollectiveError, match="same calls"):
        rx.grad(loss, w, microbatches=2)(jnp.asarray(X))
