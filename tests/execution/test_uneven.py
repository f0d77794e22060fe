"""Compiled replicas with different numbers of rows: each device computes its own, with exact results.

`replicated_work` has the reasons why some steps do not: there, every device computes the rows of all.
"""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.execution import _run

MEAN, SUM = rx.VariableAggregation.MEAN, rx.VariableAggregation.SUM
ON_READ = rx.VariableSynchronization.ON_READ
WIDTH = 3


@pytest.fixture
def replicated_work(monkeypatch):
    """The reasons why every device computes the rows of all replicas."""
    reasons = []
    monkeypatch.setattr(_run, "_warn_once", reasons.append)
    return reasons


def mirrored(n):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def close(actual, expected):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), actual, expected)


def data(num_rows):
    rng = np.random.default_rng(num_rows)
    x = rng.normal(size=(num_rows, WIDTH)).astype(np.float32)
    return {"x": x, "y": x.sum(axis=1) + 1, "index": np.arange(num_rows, dtype=np.int32)}


# The same training on one device and on replicas, with batch normalization, dropout, a metric and moving
# averages.


def initial():
    rng = np.random.default_rng(0)
    shapes = {"hidden": (WIDTH, 4), "out": (4, 1)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def losses(weights, batch, normalise, keys):
    hidden = jnp.tanh(normalise(batch["x"] @ weights["hidden"]))
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, (4,)))(keys)
    return ((jnp.where(kept, hidden, 0) @ weights["out"])[:, 0] - batch["y"]) ** 2


TRANSFORMATION = optax.adam(1e-2, eps=1e-3)


@jax.jit
def one_device(batch):
    """The loss, the new weights and the mean that is normalised with."""
    weights = initial()

    def loss_fn(weights):
        mean = jnp.mean(batch["x"] @ weights["hidden"], axis=0)
        keys = rx.example_keys(jax.random.key(3), batch["index"])
        return jnp.mean(losses(weights, batch, lambda x: x - mean, keys)), mean

    (loss, mean), gradients = jax.value_and_grad(loss_fn, has_aux=True)(weights)
    updates, _ = TRANSFORMATION.update(gradients, TRANSFORMATION.init(weights), weights)
    return loss, optax.apply_updates(weights, updates), mean / 10


class Training:
    def __init__(self, strategy, **options):
        self.strategy, self.options = strategy, options
        with strategy.scope():
            self.weights = rx.create_variables(initial())
            self.moving = rx.Variable(np.zeros(4, np.float32), trainable=False, aggregation=MEAN)
            self.count = rx.Variable(0, synchronization=ON_READ, aggregation=SUM)
            self.optimizer = rx.Optimizer(TRANSFORMATION)
        self.step = rx.function(self._step)

    def _step(self, batch):
        loss, rows = self.strategy.run(self._replica_step, args=(batch,))
        return self.strategy.reduce("SUM", loss, axis=None), rows

    def _replica_step(self, batch):
        loss, gradients = rx.value_and_grad(self._loss, self.weights, **self.options)(batch)
        self.optimizer.apply_gradients(gradients, self.weights)
        self.count.assign_add(batch["x"].shape[0])
        return loss, batch["x"] * 2

    def _loss(self, batch):
        keys = rx.example_keys(jax.random.key(3), batch["index"])
        return rx.compute_average_loss(losses(rx.read_values(self.weights), batch, self._normalise, keys))

    def _normalise(self, x):
        if self.options:  # the parts of a batch do not know its mean
            return x
        sums = [jnp.sum(x, axis=0), x.shape[0]]
        total, count = rx.get_replica_context().all_reduce("SUM", sums)
        mean = total / count
        self.moving.assign(0.9 * self.moving.value + 0.1 * mean)
        return x - mean

    def trains_as_one_device(self, num_rows):
        (batch,) = self.strategy.distribute_dataset(rx.from_arrays(data(num_rows)).batch(num_rows))
        loss, rows = self.step(batch)
        expected_loss, weights, mean = one_device(data(num_rows))
        close(loss, expected_loss)
        close(rx.read_values(self.weights), weights)
        close(self.moving.numpy(), mean)
        assert int(self.count.numpy()) == num_rows
        own = self.strategy.local_results(rows)
        np.testing.assert_array_equal(np.concatenate(own), 2 * data(num_rows)["x"])
        assert [len(part) for part in own] == [len(p) for p in self.strategy.local_results(batch["x"])]


def test_training_equals_one_device(replicated_work):
    Training(mirrored(3)).trains_as_one_device(7)
    assert not replicated_work


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shard": "optimizer"}, ""),
        ({"shard": "all", "gather_again": False}, ""),
        ({"shard": "all"}, "gather_again=False"),
    ],
    ids=["optimizer", "all", "all-gathered-again"],
)
def test_training_with_sharded_variables_equals_one_device(options, reason, replicated_work):
    strategy = rx.ShardedStrategy(["CPU:0", "CPU:1", "CPU:2"], min_shard_bytes=1, **options)
    Training(strategy).trains_as_one_device(7)
    assert bool(replicated_work) == bool(reason) and all(reason in text for text in replicated_work)


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_training_equals_one_device_for_every_remainder(n, replicated_work, subtests):
    for num_rows in range(1, 2 * n + 2):
        with subtests.test(num_rows=num_rows):
            Training(mirrored(n)).trains_as_one_device(num_rows)
            assert not replicated_work


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_accumulated_gradients_equal_one_device_for_every_remainder(n, replicated_work, subtests):
    for num_rows in range(1, 3 * n + 2):
        with subtests.test(num_rows=num_rows):
            accumulated_gradients_equal_one_device(mirrored(n), num_rows)
            # A replica with less than two rows makes one part instead of two, and so fewer collectives.
            assert not replicated_work or num_rows < 2 * n
        replicated_work.clear()


def test_accumulated_gradients_equal_one_device(replicated_work):
    accumulated_gradients_equal_one_device(mirrored(2), 5)
    assert not replicated_work


def accumulated_gradients_equal_one_device(strategy, num_rows):
    with strategy.scope():
        w = rx.Variable(initial()["hidden"])

    def loss_of(w, x):
        return jnp.sum(jnp.tanh(x @ w), axis=1) ** 2

    def replica_fn(x):
        def loss(x):
            return rx.compute_average_loss(loss_of(w.value, x))

        return rx.value_and_grad(loss, w, microbatches=2)(x)

    @rx.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)

    x = data(num_rows)["x"]
    (batch,) = strategy.distribute_dataset(rx.from_arrays(x).batch(num_rows))
    close(step(batch), jax.value_and_grad(lambda w: jnp.mean(loss_of(w, x)))(initial()["hidden"]))


# Programs that one switch over the shapes could get wrong. Replica i has `SIZES[i]` rows.

SIZES = [3, 2, 2]


def rows(i):
    return np.arange(SIZES[i] * WIDTH, dtype=np.float32).reshape(-1, WIDTH) / 7 + i


ROWS = [rows(i) for i in range(3)]


def each(strategy, value_of):
    return strategy.distribute_values_from_function(lambda ctx: value_of(ctx.replica_id_in_sync_group))


def run(replica_fn):
    """What each replica returns, compiled."""
    strategy = mirrored(3)
    found = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))(each(strategy, rows))
    parts = [strategy.local_results(leaf) for leaf in jax.tree.leaves(found, is_leaf=_is_per_replica)]
    return [[np.asarray(part) for part in own] for own in zip(*parts, strict=True)]


def _is_per_replica(value):
    return isinstance(value, rx.PerReplica)


def all_reduce(value):
    return rx.get_replica_context().all_reduce("SUM", value)


def test_constants_are_not_taken_as_equal_on_all_replicas(replicated_work):
    """JAX multiplies a constant by the number of devices instead of adding it up."""

    def replica_fn(x):
        axis, count = rx.get_strategy().axis_name, x.shape[0]
        sums = jax.lax.psum((count, np.float32(count)), axis)
        return *sums, jax.lax.pmean(float(count), axis), all_reduce(count), jax.lax.psum(1, axis)

    for found in run(replica_fn):
        close(found, [7, 7, 7 / 3, 7, 3])
    assert not replicated_work


def test_values_of_every_kind_pass_a_collective(replicated_work):
    def replica_fn(x):
        key = rx.get_replica_context().rng(jax.random.key(0))
        keys, large, whole = jax.random.split(key, x.shape[0]), x > 1, x.astype(jnp.int32)
        total = all_reduce(x.sum())
        noise = jax.vmap(lambda key: jax.random.uniform(key, (WIDTH,)))(keys)
        return jnp.where(large, total, 0), whole + 1, noise * total

    total = sum(x.sum() for x in ROWS)
    for i, found in enumerate(run(replica_fn)):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), i), SIZES[i])
        noise = np.stack([jax.random.uniform(key, (WIDTH,)) for key in keys])
        close(found, [np.where(ROWS[i] > 1, total, 0), ROWS[i].astype(np.int32) + 1, noise * total])
    assert not replicated_work


def test_some_replicas_compute_the_same_value_in_different_sections(replicated_work):
    """Two rows: before the collective. One row: after it. No rows: not at all."""

    def replica_fn(x):
        fives, total = jnp.full(x.shape[0], 5.0), all_reduce(x.sum())
        return fives + x.sum(), jnp.full(2 * x.shape[0], 5.0) * total

    strategy = mirrored(3)
    x = each(strategy, lambda i: np.ones(2 - i, np.float32))
    first, second = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))(x)
    close(list(strategy.local_results(first)), [np.full(2, 7.0), np.full(1, 6.0), np.zeros(0)])
    close(list(strategy.local_results(second)), [np.full(4, 15.0), np.full(2, 15.0), np.zeros(0)])
    assert not replicated_work


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
def test_collectives_in_functions_that_jax_traces(wrap, replicated_work):
    def replica_fn(x):
        @wrap
        def loss(w):
            hidden = jnp.tanh(x * w)
            return jnp.sum(hidden * all_reduce(hidden.sum()))

        return jax.grad(loss)(0.5)

    def loss(w):
        return jnp.tanh(jnp.concatenate(ROWS) * w).sum() ** 2

    found = run(replica_fn)
    close(sum(gradient for (gradient,) in found), jax.grad(loss)(0.5))
    assert not replicated_work


@jax.custom_vjp
def with_own_vjp(x):
    return jnp.sum(x**2)


@jax.custom_jvp
def with_own_jvp(x):
    return jnp.sum(x**2)


with_own_vjp.defvjp(lambda x: (with_own_vjp(x), x), lambda x, g: (100 * g * x,))
with_own_jvp.defjvp(lambda xs, ts: (with_own_jvp(*xs), jnp.sum(100 * xs[0] * ts[0])))


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit, jax.checkpoint], ids=["", "jit", "checkpoint"])
@pytest.mark.parametrize("fn", [with_own_vjp, with_own_jvp])
def test_custom_derivatives_if_the_step_differentiates_its_replicas(fn, wrap, replicated_work):
    strategy = mirrored(3)

    @rx.function
    def step(x):
        @wrap
        def loss(w):
            return strategy.reduce("SUM", strategy.run(lambda x: fn(x * w), args=(x,)), axis=None)

        return jax.grad(loss)(2.0)

    close(step(each(strategy, rows)), 100 * np.sum(2 * np.concatenate(ROWS) ** 2))
    assert bool(replicated_work) == (fn is with_own_vjp)


def test_variables_read_in_a_loop(replicated_work):
    """JAX caches traces of loops: the trace for one shape must not be used for another."""
    strategy = mirrored(3)
    with strategy.scope():
        v = rx.Variable(2.0, aggregation=MEAN)

    def replica_fn(x):
        def body(total, row):
            return total + v.value * row.sum(), None

        first, _ = jax.lax.scan(body, 0.0, x[:2])
        v.assign(all_reduce(first))
        return jax.lax.scan(body, 0.0, x[:2])[0] + 10 * rx.get_replica_context().replica_id_in_sync_group

    found = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))(each(strategy, rows))
    sums = [x[:2].sum() for x in ROWS]
    expected = [2 * sum(sums) * own + 10 * i for i, own in enumerate(sums)]
    close(list(strategy.local_results(found)), expected)
    assert not replicated_work


def test_callbacks_run_once_on_each_replica(replicated_work):
    seen = []

    def replica_fn(x):
        total = all_reduce(x.sum())
        jax.debug.callback(lambda x, total: seen.append((x.shape, float(total))), x, total)
        return total

    ((total,), *_) = run(replica_fn)
    jax.effects_barrier()
    assert sorted(seen) == [((n, WIDTH), total) for n in sorted(SIZES)]
    assert not replicated_work


def test_results_are_arguments_of_another_run(replicated_work):
    strategy = mirrored(3)

    def step(x):
        y = strategy.run(lambda x: x + all_reduce(x.sum()), args=(x,))
        return strategy.run(lambda x, y: x.T @ y, args=(x, y)), strategy.reduce("MEAN", y, axis=0)

    products, mean = rx.function(step)(each(strategy, rows))
    total = sum(x.sum() for x in ROWS)
    close(list(strategy.local_results(products)), [x.T @ (x + total) for x in ROWS])
    close(mean, (np.concatenate(ROWS) + total).mean(axis=0))
    assert not replicated_work


# Where replicas see more of each other than one trace knows, every device computes the work of all.


def gathers(x):
    return rx.get_replica_context().all_gather(x, 0).sum()


def counts_rows_in_a_merge_call(x):
    def merge_fn(strategy, x):
        return strategy.reduce("MEAN", x, axis=0).sum()

    return rx.get_replica_context().merge_call(merge_fn, args=(x,))


def closes_over_rows(x):
    def merge_fn(strategy, total):
        return strategy.reduce("SUM", total, axis=None) * x.shape[0]

    return rx.get_replica_context().merge_call(merge_fn, args=(x.sum(),))


EVERYTHING = np.concatenate(ROWS)
NOT_WOVEN = {
    gathers: (EVERYTHING.sum(), "different shapes"),
    counts_rows_in_a_merge_call: (EVERYTHING.mean(axis=0).sum(), "depends on the number of rows"),
    closes_over_rows: (EVERYTHING.sum() * SIZES[0], "depends on the number of rows"),
}


@pytest.mark.parametrize("replica_fn", NOT_WOVEN)
def test_other_programs_are_computed_on_every_device(replica_fn, replicated_work):
    expected, reason = NOT_WOVEN[replica_fn]
    for found in run(replica_fn):
        close(found, [expected])
    assert replicated_work and all(reason in message for message in replicated_work)


def test_a_warning_says_why_every_device_computes_all_rows(caplog):
    _run._warn_once.cache_clear()
    for _ in range(2):
        run(gathers)
    (message,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "different shapes" in message and "partial_batch='pad'" in message
