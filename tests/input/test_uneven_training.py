"""Training on batches that do not divide: N replicas do what one device does on the whole batch.

The reference is plain JAX on whole batches. A global batch has 2 N rows and the last one fewer: all numbers
of them where batches are padded, and else every residue modulo N, so that there are replicas with one row
less than others, and replicas with none.
"""

import functools
import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

RATE = 0.05
MOMENTUM = 0.9
EPSILON = 0.01
HIDDEN = 8

MODES = {"eager": lambda fn: fn, "compiled": rx.function}
PARTIAL = ["exact", "pad"]
ONLY_FIRST = rx.VariableAggregation.ONLY_FIRST_REPLICA
MEAN = rx.VariableAggregation.MEAN


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-5, atol=1e-6)


def mirrored(n):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(n)])


@pytest.fixture(autouse=True)
def _many_programs(caplog):
    """Each runs a few times only, so time spent on making it fast is lost."""
    caplog.set_level(logging.ERROR, "replicax")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# The data: two epochs of one full batch of 2 N rows and one of `rest` rows.


def dataset(n, rest):
    rng = np.random.default_rng([n, rest])
    x = rng.normal(size=(2 * n + rest, 3)).astype(np.float32)
    y = np.sin(x @ np.array([1.0, -2.0, 0.5], np.float32)) + 0.3
    return rx.from_arrays({"x": x, "y": y}).shuffle(seed=n).batch(2 * n).repeat(2)


def initial_weights():
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(3, HIDDEN)) * 0.6).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        (rng.normal(size=(HIDDEN, 1)) * 0.3).astype(np.float32),
        np.zeros(1, np.float32),
    ]


# The same two networks twice: on one device with the whole batch, and on a replica with its rows.


def one_device_weighted(weights, moving, x, y):
    """Examples far from the mean of the outputs weigh less, and the mean itself is drawn to zero."""
    w1, b1, w2, b2 = weights
    out = (jnp.tanh(x @ w1 + b1) @ w2 + b2)[:, 0]
    center = jnp.mean(out)
    losses = (out - y) ** 2 / (1 + (out - center) ** 2)
    return jnp.mean(losses) + 0.1 * center**2, moving


def replica_weighted(weights, moving, x, y, mask):
    ctx = rx.get_replica_context()
    w1, b1, w2, b2 = weights
    out = (jnp.tanh(x @ w1 + b1) @ w2 + b2)[:, 0]
    count = x.shape[0] if mask is None else jnp.sum(mask)
    total, count = ctx.all_reduce("SUM", [jnp.sum(out, where=mask), jnp.float32(count)])
    center = total / count
    losses = (out - y) ** 2 / (1 + (out - center) ** 2)
    mine = jnp.sum(losses, where=mask) / count
    return mine + 0.1 * center**2 / ctx.num_replicas_in_sync, moving


def one_device_normalised(weights, moving, x, y):
    """Batch normalisation, with moving averages for evaluation."""
    w1, b1, w2, b2 = weights
    hidden = x @ w1
    mean, variance = jnp.mean(hidden, axis=0), jnp.var(hidden, axis=0)
    hidden = jnp.tanh((hidden - mean) * jax.lax.rsqrt(variance + EPSILON) + b1)
    loss = jnp.mean(((hidden @ w2 + b2)[:, 0] - y) ** 2)
    moved = [
        MOMENTUM * old + (1 - MOMENTUM) * new for old, new in zip(moving, (mean, variance), strict=True)
    ]
    return loss, moved


def replica_normalised(weights, moving, x, y, mask):
    ctx = rx.get_replica_context()
    w1, b1, w2, b2 = weights
    rows = None if mask is None else mask[:, None]
    hidden = x @ w1
    count = x.shape[0] if mask is None else jnp.sum(mask)
    total, count = ctx.all_reduce("SUM", [jnp.sum(hidden, axis=0, where=rows), jnp.float32(count)])
    mean = total / count
    variance = ctx.all_reduce("SUM", jnp.sum((hidden - mean) ** 2, axis=0, where=rows)) / count
    hidden = jnp.tanh((hidden - mean) * jax.lax.rsqrt(variance + EPSILON) + b1)
    loss = jnp.sum(((hidden @ w2 + b2)[:, 0] - y) ** 2, where=mask) / count
    moved = [
        MOMENTUM * old + (1 - MOMENTUM) * new for old, new in zip(moving, (mean, variance), strict=True)
    ]
    return loss, moved


NETWORKS = {
    "weighted": (one_device_weighted, replica_weighted),
    "normalised": (one_device_normalised, replica_normalised),
}


@functools.partial(jax.jit, static_argnums=0)
def one_device_step(loss_fn, weights, moving, x, y):
    (loss, moved), gradients = jax.value_and_grad(loss_fn, has_aux=True)(weights, moving, x, y)
    return loss, [w - RATE * g for w, g in zip(weights, gradients, strict=True)], moved


@functools.cache
def one_device_run(network, n, rests):
    """The loss of every step, and the weights and moving averages after the last, in plain JAX."""
    weights, moving = initial_weights(), [np.zeros(HIDDEN, np.float32), np.ones(HIDDEN, np.float32)]
    losses = []
    for rest in rests:
        for batch in dataset(n, rest):
            loss, weights, moving = one_device_step(
                NETWORKS[network][0], weights, moving, batch["x"], batch["y"]
            )
            losses.append(loss)
    return losses, weights, moving


class Training:
    """A step and its variables."""

    def __init__(self, network, strategy, mode, partial_batch, aggregation=ONLY_FIRST):
        self.strategy, self.loss_fn = strategy, NETWORKS[network][1]
        self.options = rx.InputOptions(partial_batch=partial_batch)
        with strategy.scope():
            self.weights = [rx.Variable(w, aggregation=aggregation) for w in initial_weights()]
            averages = jnp.zeros(HIDDEN), jnp.ones(HIDDEN)
            self.moving = [rx.Variable(a, aggregation=ONLY_FIRST, trainable=False) for a in averages]
        self.step = mode(self._step)

    def _step(self, batch):
        shares = self.strategy.run(self._replica_step, args=(batch,))
        return self.strategy.reduce("SUM", shares, axis=None)

    def _replica_step(self, batch):
        ctx = rx.get_replica_context()
        moving = [v.value for v in self.moving]
        (loss, moved), gradients = jax.value_and_grad(self.loss_fn, has_aux=True)(
            [w.value for w in self.weights], moving, batch["x"], batch["y"], ctx.example_mask
        )
        gradients = ctx.all_reduce("SUM", gradients)
        for variable, gradient in zip(self.weights, gradients, strict=True):
            variable.assign_sub(RATE * gradient)
        for variable, value in zip(self.moving, moved, strict=True):
            variable.assign(value)
        return loss

    def run(self, n, rests):
        losses = []
        for rest in rests:
            for batch in self.strategy.distribute_dataset(dataset(n, rest), self.options):
                losses.append(self.step(batch))
        return losses

    def check(self, network, n, rests):
        expected, weights, moving = one_device_run(network, n, rests)
        close(self.run(n, rests), expected)
        for variable, value in zip((*self.weights, *self.moving), (*weights, *moving), strict=True):
            for copy in self.strategy.local_results(variable):
                close(copy.value, value)


def all_rests(n):
    return tuple(range(1, 2 * n))


def shared_rests(network, n):
    """Every residue modulo N, by fewer rows than replicas or by more.

    The networks share them, since each is a program of its own and takes long to compile.
    """
    rests = [k if k % 4 in (1, 2) else n + k for k in range(n)]
    return tuple(rests[list(NETWORKS).index(network) :: 2]) or (n,)


def two_rests(n):
    """Fewer rows than replicas, and more."""
    return tuple(sorted({(n + 1) // 2, 2 * n - 1}))


REPLICAS = list(range(1, 9))


@pytest.mark.parametrize("n", REPLICAS)
@pytest.mark.parametrize("network", NETWORKS)
def test_compiled_training_on_any_last_batch_is_that_of_one_device(network, n):
    training = Training(network, mirrored(n), rx.function, "exact")
    training.check(network, n, shared_rests(network, n))


@pytest.mark.parametrize("n", REPLICAS)
@pytest.mark.parametrize("network", NETWORKS)
def test_compiled_training_on_padded_batches_is_that_of_one_device(network, n):
    training = Training(network, mirrored(n), rx.function, "pad")
    training.check(network, n, all_rests(n))
    assert training.step.num_programs == 1


@pytest.mark.parametrize(
    ("n", "network", "partial_batch"),
    [
        (1, "normalised", "pad"),
        (2, "weighted", "pad"),
        (3, "normalised", "exact"),
        (5, "weighted", "exact"),
    ],
)
def test_eager_training_on_partial_batches_is_that_of_one_device(n, network, partial_batch):
    training = Training(network, mirrored(n), MODES["eager"], partial_batch)
    training.check(network, n, two_rests(n))


@pytest.mark.parametrize("partial_batch", PARTIAL)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("network", NETWORKS)
def test_averaging_equal_updates_changes_nothing(network, mode, partial_batch):
    training = Training(network, mirrored(3), MODES[mode], partial_batch, aggregation=MEAN)
    training.check(network, 3, two_rests(3))


@pytest.mark.parametrize("partial_batch", PARTIAL)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "make",
    [
        rx.get_strategy,
        lambda: rx.OneDeviceStrategy("CPU:1"),
        lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    ],
    ids=["default", "one_device", "central"],
)
def test_other_strategies_train_like_one_device(make, mode, partial_batch):
    strategy = make()
    n = strategy.num_replicas_in_sync
    Training("normalised", strategy, MODES[mode], partial_batch).check("normalised", n, two_rests(n))


# What goes wrong in tf.distribute.


@pytest.mark.parametrize("partial_batch", PARTIAL)
@pytest.mark.parametrize("mode", MODES)
def test_the_mean_over_examples_is_right_with_an_empty_replica(mode, partial_batch):
    """tf.distribute's mean of the replicas' own means is NaN here: that of no rows is 0 / 0."""
    strategy = mirrored(3)
    x = np.array([1.0, 2.0, 6.0, 4.0, 5.0], np.float32)  # three rows, then two for three replicas
    data = strategy.distribute_dataset(
        rx.from_arrays(x).batch(3), rx.InputOptions(partial_batch=partial_batch)
    )

    def replica_fn(x):
        ctx = rx.get_replica_context()
        count = x.shape[0] if ctx.example_mask is None else jnp.sum(ctx.example_mask)
        total, count = ctx.all_reduce("SUM", [jnp.sum(x**2, where=ctx.example_mask), count])
        return x**2, total / count

    @MODES[mode]
    def step(x):
        per_example, mean = strategy.run(replica_fn, args=(x,))
        return strategy.reduce("MEAN", per_example, axis=0), strategy.reduce("MEAN", mean, axis=None)

    found = [step(batch) for batch in data]
    for (reduced, from_sums), expected in zip(found, [(1 + 4 + 36) / 3, (16 + 25) / 2], strict=True):
        close(reduced, expected)
        close(from_sums, expected)


def test_an_empty_replicas_own_mean_is_still_not_a_number():
    """The user's own `jnp.mean` means what it says; nothing hides it."""
    strategy = mirrored(3)
    (batch,) = strategy.distribute_dataset([np.ones(2, np.float32)])
    means = strategy.local_results(strategy.run(jnp.mean, args=(batch,)))
    assert [math.isnan(mean) for mean in means] == [False, False, True]


@pytest.mark.parametrize("partial_batch", PARTIAL)
@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_finite_and_right_with_an_empty_replica(mode, partial_batch):
    strategy = mirrored(3)
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], np.float32)
    options = rx.InputOptions(partial_batch=partial_batch)

    def loss(w, x, mask):
        ctx = rx.get_replica_context()
        count = x.shape[0] if mask is None else jnp.sum(mask)
        count = ctx.all_reduce("SUM", jnp.float32(count))
        return jnp.sum(jnp.sqrt(x @ w), where=mask) / count

    def replica_fn(x):
        ctx = rx.get_replica_context()
        return ctx.all_reduce("SUM", jax.grad(loss)(jnp.ones(2), x, ctx.example_mask))

    step = MODES[mode](lambda x: strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None))
    batches = list(strategy.distribute_dataset(rx.from_arrays(x).batch(3), options))
    for batch, rows in zip(batches, [x[:3], x[3:]], strict=True):
        expected = jax.grad(lambda w, rows=rows: jnp.mean(jnp.sqrt(rows @ w)))(jnp.ones(2))
        close(step(batch), expected)


@pytest.mark.parametrize("partial_batch", PARTIAL)
@pytest.mark.parametrize("mode", MODES)
def test_ten_rows_in_batches_of_four_on_three_replicas_train_and_evaluate(mode, partial_batch):
    """Keras raises an IndivisibleError."""
    strategy = mirrored(3)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(10, 2)).astype(np.float32)
    y = x @ np.array([2.0, -1.0], np.float32)
    options = rx.InputOptions(partial_batch=partial_batch)
    data = strategy.distribute_dataset(rx.from_arrays((x, y)).batch(4), options)
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2), aggregation=rx.VariableAggregation.SUM)

    def replica_losses(w, x, y):
        return (x @ w - y) ** 2

    def replica_step(x, y):
        ctx = rx.get_replica_context()
        mask = ctx.example_mask
        count = ctx.all_reduce("SUM", jnp.float32(x.shape[0] if mask is None else jnp.sum(mask)))
        share = lambda w: jnp.sum(replica_losses(w, x, y), where=mask) / count  # noqa: E731
        w.assign_sub(0.2 * jax.grad(share)(w.value))  # SUM adds up the replicas' shares

    def evaluate_step(x, y):
        losses = strategy.run(lambda x, y: replica_losses(w.value, x, y), args=(x, y))
        return strategy.reduce("SUM", losses, axis=0)

    train = MODES[mode](lambda x, y: strategy.run(replica_step, args=(x, y)))
    evaluate = MODES[mode](evaluate_step)
    expected = np.zeros(2, np.float32)
    for _ in range(3):
        for batch in data:
            train(*batch)
        for start in range(0, 10, 4):
            rows, wanted = x[start : start + 4], y[start : start + 4]
            expected = expected - 0.2 * 2 * rows.T @ (rows @ expected - wanted) / len(rows)
        close(w.value, expected)
        close(sum(evaluate(*batch) for batch in data) / 10, np.mean((x @ expected - y) ** 2))
