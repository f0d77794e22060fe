"""`step.many(...)`: many steps in one program, with the results of as many calls."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx


def make_training(strategy, seed=0):
    """A step with everything that a step may have: parameters, optimizer, metric, random keys."""
    random = np.random.default_rng(seed)
    with strategy.scope():
        w = rx.Variable(random.normal(size=(5, 3)).astype(np.float32))
        counter = rx.Variable(0, aggregation="ONLY_FIRST_REPLICA")
        optimizer, metric = rx.Optimizer(optax.adam(0.1)), rx.Mean()

    def replica_step(x):
        keys = jax.random.fold_in(jax.random.key(1), counter.value)
        counter.assign_add(1)
        noise = jax.random.uniform(keys, (5, 3))
        loss = optimizer.minimize(lambda: rx.compute_average_loss(jnp.sum((x @ (w + noise)) ** 2, -1)), [w])
        metric.update_state(jnp.sum(x, axis=-1))
        return loss

    @rx.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    return step, [w, *optimizer.variables], metric, optimizer


def batches_of(strategy, rows=22, batch=4):
    x = np.random.default_rng(1).normal(size=(rows, 5)).astype(np.float32)
    return strategy.distribute_dataset(rx.from_arrays(x).batch(batch))


STRATEGIES = {
    "one": lambda: rx.OneDeviceStrategy("CPU:0"),
    "two": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "three": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]),  # every batch is uneven
    "sharded": lambda: rx.ShardedStrategy(["CPU:0", "CPU:1"], shard="all", min_shard_bytes=0),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"]),
}


@pytest.mark.parametrize("make", STRATEGIES)
def test_equals_as_many_calls_bit_for_bit(make):
    strategy = STRATEGIES[make]()
    one_by_one, variables, metric, optimizer = make_training(strategy)
    expected = [one_by_one(batch) for batch in batches_of(strategy)]
    in_a_loop, others, other_metric, other_optimizer = make_training(strategy)
    found = in_a_loop.many(batches_of(strategy))
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))
    pairs = zip([*variables, *optimizer.variables], [*others, *other_optimizer.variables], strict=True)
    for variable, other in pairs:
        np.testing.assert_array_equal(other.read_value(), variable.read_value())
    assert float(metric.result()) == float(other_metric.result())
    assert in_a_loop.num_programs == 2, "five whole batches, and the last one"


def test_per_replica_results_and_several_arguments():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    step = rx.function(lambda x, y: strategy.run(lambda x, y: {"sum": x + y}, args=(x, y)))
    xs = [strategy.distribute_values_from_function(lambda ctx, i=i: jnp.full(2, i)) for i in range(3)]
    found = step.many(xs, [jnp.float32(10 * i) for i in range(3)])
    for i, result in enumerate(found):
        assert [part.tolist() for part in strategy.local_results(result["sum"])] == [[11 * i] * 2] * 2


def test_programs_are_reused_for_the_same_number_of_steps():
    v = rx.Variable(0.0)
    step = rx.function(lambda x: v.assign_add(x))
    values = [jnp.float32(1)] * 4
    assert [float(x) for _ in range(3) for x in step.many(values)] == [*range(1, 13)]
    assert step.num_programs == 1
    assert [float(x) for x in step.many(values[:3])] == [13, 14, 15]
    assert step.num_programs == 2


def test_no_calls_and_one_call():
    step = rx.function(lambda x: 2 * x)
    assert step.many([]) == []
    assert step.many([jnp.float32(3)]) == [6]


def test_other_constants_are_other_calls():
    step = rx.function(lambda x, factor: factor * x)
    assert [float(x) for x in step.many([jnp.float32(1)] * 4, [2, 2, 3, 3])] == [2, 2, 3, 3]


def test_arguments_of_different_lengths():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        rx.function(lambda x, y: x + y).many([1.0, 2.0], [1.0])


def test_an_error_leaves_the_state_as_it_was():
    v = rx.Variable(0.0)

    def step(x):
        v.assign_add(x)
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        rx.function(step).many([jnp.float32(1)] * 2)
    assert float(v.value) == 0
    assert [float(x) for x in rx.function(lambda x: v.assign_add(x)).many([jnp.float32(1)] * 2)] == [1, 2]


def test_in_a_replica_and_in_a_step():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    inner = rx.function(lambda x: x + 1)
    outer = rx.function(lambda x: strategy.run(lambda x: inner.many([x, 2 * x])[1], args=(x,)))
    assert strategy.reduce("SUM", outer(jnp.float32(3)), axis=None) == 14


def test_data_ends_in_the_middle():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    step = rx.function(lambda x: strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None))
    iterator = iter(batches_of(strategy, rows=20))
    sizes = [len(step.many(itertools.islice(iterator, 3))) for _ in range(3)]
    assert sizes == [3, 2, 0]
