"""Embedding tables on parameter servers: steps fetch and send the rows that they look up."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.parameter_server.local import local_strategy

import replicax as rx
from replicax import tf
from replicax.parameter_server._row_updates import updated_by_rows
from replicax.training import Transformation

ROWS, WIDTH = 300, 4
ROW_BYTES = 4 * WIDTH


def example(num_steps=3, size=8):
    """A table, weights, and for each step row numbers, some of which repeat, and targets."""
    rng = np.random.default_rng(0)
    table, w = rng.normal(size=(ROWS, WIDTH)), rng.normal(size=WIDTH)
    ids = rng.integers(0, 12, (num_steps, size)) * 25
    targets = rng.normal(size=(num_steps, size))
    return (np.float32(table), np.float32(w)), list(
        zip(ids.astype(np.int32), np.float32(targets), strict=True)
    )


def plain_steps(values, batches, transformation):
    """The parameters after each step of plain JAX and optax."""
    params, state = values, transformation.init(values)

    def loss_fn(params, ids, y):
        return jnp.mean((jnp.take(params[0], ids, axis=0) @ params[1] - y) ** 2)

    @jax.jit
    def step(params, state, ids, y):
        updates, state = transformation.update(jax.grad(loss_fn)(params, ids, y), state, params)
        return optax.apply_updates(params, updates), state

    for ids, y in batches:
        params, state = step(params, state, ids, y)
        yield params


def model(strategy, values, transformation):
    with strategy.scope():
        table, w = rx.Variable(values[0], name="table"), rx.Variable(values[1], name="w")
        return table, w, rx.Optimizer(transformation)


def training_step(strategy, table, w, optimizer, look_up=lambda table, ids: table.sparse_read(ids)):
    @rx.function
    def step(batch):
        def replica_step(batch):
            ids, y = batch

            def loss_fn():
                return rx.compute_average_loss((look_up(table, ids) @ w.value - y) ** 2)

            return optimizer.minimize(loss_fn, (table, w))

        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    return lambda batch: step(strategy.distribute_batch(batch))


def moved(strategy, what):
    return sum(server[f"bytes_{what}"] for server in strategy.statistics())


PARTITIONERS = {
    "fixed": rx.FixedShardsPartitioner(3),
    "smallest size": rx.MinSizePartitioner(64, max_shards=3),
    "largest size": rx.MaxSizePartitioner(ROWS * ROW_BYTES // 3),
}


@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_divided_table_trains_as_a_whole_one_step_by_step(name, monkeypatch):
    values, batches = example()
    with local_strategy(monkeypatch, num_ps=3, partitioner=PARTITIONERS[name]) as strategy:
        table, w, optimizer = model(strategy, values, optax.adagrad(0.1))
        assert len(table.layout.placement.parts) == 3
        step = training_step(strategy, table, w, optimizer)
        for batch, expected in zip(batches, plain_steps(values, batches, optax.adagrad(0.1)), strict=True):
            before = moved(strategy, "pulled"), moved(strategy, "pushed")
            step(batch)
            if batch is not batches[0]:  # whose values are also fetched to compile the step
                rows = len(np.unique(batch[0])) * ROW_BYTES
                assert moved(strategy, "pulled") - before[0] == rows + w.size * 4
                assert rows < moved(strategy, "pushed") - before[1] < rows + 200
            np.testing.assert_allclose(table.numpy(), expected[0], rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(w.numpy(), expected[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("transformation", "num_devices"), [(optax.adam(0.1), 1), (optax.sgd(0.1), 2)])
def test_other_optimizers_and_several_devices(transformation, num_devices, monkeypatch):
    """Adam moves rows without a gradient too; replicas look up different rows."""
    values, batches = example()
    with local_strategy(monkeypatch, num_ps=2, num_devices=num_devices) as strategy:
        table, w, optimizer = model(strategy, values, transformation)
        step = training_step(strategy, table, w, optimizer)
        for batch, expected in zip(batches, plain_steps(values, batches, transformation), strict=True):
            step(batch)
            np.testing.assert_allclose(table.numpy(), expected[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(w.numpy(), expected[1], rtol=1e-5, atol=1e-6)


def test_ways_to_look_rows_up(monkeypatch):
    """`v[ids]`, TensorFlow's functions and a tape; row numbers may be computed from arguments."""
    values, _ = example()
    with local_strategy(monkeypatch) as strategy:
        table, _, optimizer = model(strategy, values, optax.sgd(0.5))
        optimizer.build([table])
    ids = jnp.array([[7, 7], [299, 3]])

    @rx.function
    def read(ids):
        own = jnp.where(ids == 7, 8, ids)
        return table[own], tf.nn.embedding_lookup(table, ids), tf.gather(table, ids), table[5]

    @rx.function
    def train(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    read(ids)
    before = moved(strategy, "pulled")
    found = read(ids)
    assert moved(strategy, "pulled") - before == 5 * ROW_BYTES
    for rows, numbers in zip(found, ([[8, 8], [299, 3]], ids, ids, 5), strict=True):
        np.testing.assert_array_equal(rows, values[0][np.asarray(numbers)])
    before = moved(strategy, "pushed")
    train(ids)
    assert moved(strategy, "pushed") - before < 200
    expected = values[0].copy()
    np.subtract.at(expected, np.asarray(ids), 0.5)
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(table.sparse_read([1, 4]), expected[[1, 4]])  # eagerly


def test_rows_that_do_not_exist_are_those_of_a_whole_array(monkeypatch):
    values, _ = example()
    ids = jnp.array([-1, ROWS, -ROWS - 1, ROWS + 5, 0])
    with local_strategy(monkeypatch) as strategy:
        table, *_ = model(strategy, values, optax.sgd(0.5))
    look_up = rx.function(lambda ids: (table.sparse_read(ids), table[ids]))
    expected = jnp.take(values[0], ids, axis=0), jnp.asarray(values[0])[ids]
    for rows, whole in zip(look_up(ids), expected, strict=True):
        np.testing.assert_array_equal(rows, whole)
    np.testing.assert_array_equal(table.sparse_read(ids), expected[0])
    np.testing.assert_array_equal(table.sparse_read(jnp.array([ROWS])), np.full((1, WIDTH), np.nan))
    with pytest.raises(TypeError, match=r"got indices of dtype float32\. It takes integer row numbers"):
        table.sparse_read([0.5])


def test_gradients_have_the_shape_of_the_table(monkeypatch):
    """What is made of them is sent as a whole; the optimizer finds the rows of those that are unchanged."""
    values, batches = example(1)
    with local_strategy(monkeypatch) as strategy:
        table, _, optimizer = model(strategy, values, optax.sgd(1.0))

    @rx.function
    def step(ids):
        loss, gradients = rx.value_and_grad(lambda: jnp.sum(table[ids] ** 2), {"table": table})()
        assert gradients["table"].shape == table.shape
        clipped, _ = optax.clip_by_global_norm(0.5).update(gradients, optax.EmptyState())
        optimizer.apply_gradients(clipped, {"table": table})
        return loss, jnp.linalg.norm(gradients["table"])

    ids = batches[0][0]
    expected = jax.grad(lambda whole: jnp.sum(whole[ids] ** 2))(jnp.asarray(values[0]))
    _, norm = step(ids)
    np.testing.assert_allclose(norm, jnp.linalg.norm(expected), rtol=1e-6)
    np.testing.assert_allclose(table.numpy(), values[0] - expected * 0.5 / norm, rtol=1e-5)


def test_where_it_is_not_possible_the_table_is_fetched_with_a_warning(monkeypatch, caplog):
    values, _ = example()
    with local_strategy(monkeypatch) as strategy, strategy.scope():
        tables = [rx.Variable(values[0], name=f"table{i}") for i in range(4)]
        position = rx.Variable(3)

    @rx.function
    def step(ids):
        by_scan = jax.lax.scan(lambda carry, i: (carry + tables[2][i], None), jnp.zeros(WIDTH), ids)[0]
        return tables[0][ids] + tables[0].value.sum(), tables[1][ids + position], by_scan, tables[3][ids]

    ids = jnp.array([5, 1])
    with caplog.at_level(logging.WARNING, "replicax"):
        found = [step(ids), step(ids + 0), step(jnp.array([5, 1, 7]))][0]
    whole = values[0]
    expected = whole[ids] + whole.sum(), whole[ids + 3], whole[ids].sum(0), whole[ids]
    for rows, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(rows, own, rtol=1e-4)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "all of the variable 'table0:0'" in said[0] and "also reads or writes it as a whole" in said[0]
    assert "'table1:0'" in said[1] and "depend on variables" in said[1]
    assert "'table2:0'" in said[2] and "look the rows up outside of it" in said[2]
    before = moved(strategy, "pulled")
    step(ids)
    assert moved(strategy, "pulled") - before == 3 * whole.nbytes + 4 + 2 * ROW_BYTES


def test_which_updates_leave_rows_without_a_gradient_alone():
    table, bias = rx.Variable(jnp.ones((5, 2))), rx.Variable(jnp.ones(3))
    kept = {
        "sgd": optax.sgd(0.1),
        "schedule": optax.sgd(optax.linear_schedule(0.1, 0.0, 10)),
        "adagrad": optax.adagrad(0.1),
    }
    moved_too = {
        "momentum": optax.sgd(0.1, momentum=0.9),
        "adam": optax.adam(0.1),
        "decay": optax.adamw(0.1),
        "norm": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        "factored": optax.adafactor(0.1, min_dim_size_to_factor=2),
        "lars": optax.lars(0.1, weight_decay=0.0, momentum=0.0),
    }
    for found, transformations in (({0, 1}, kept), (set(), moved_too)):
        for name, transformation in transformations.items():
            params = [table.value, bias.value]
            state = transformation.init(params)
            slots = [rx.Variable(leaf) for leaf in jax.tree.leaves(state)]
            owners = [{(5, 2): 0, (3,): 1}.get(slot.shape) for slot in slots]
            computed = Transformation(
                transformation, jax.tree.structure(params), jax.tree.structure(state), [None, None]
            )
            assert updated_by_rows(computed, [table, bias], slots, owners) == found, name
