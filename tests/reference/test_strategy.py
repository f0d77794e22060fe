"""The examples on the reference pages of `tf.distribute.Strategy` and `MirroredStrategy`, our way.

The pages ran on one device; where that hides what an example shows, it also runs on two.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

ONE = ["CPU:0"]
TWO = ["CPU:0", "CPU:1"]


@pytest.fixture(params=["eager", "compiled"])
def mode(request):
    """How a step runs: as it is, or through `rx.function`."""
    return rx.function if request.param == "compiled" else lambda fn: fn


def batches(strategy, *global_batches):
    """Per-replica values as a distributed dataset would hand them out."""
    count = strategy.num_replicas_in_sync
    for batch in global_batches:
        parts = np.array_split(np.asarray(batch), count)
        yield strategy.distribute_values_from_function(
            lambda ctx, parts=parts: parts[ctx.replica_id_in_sync_group]
        )


# Strategy (r2.3), introduction; MirroredStrategy (r2.2), introduction: the loop of a training epoch.
@pytest.mark.parametrize("devices", [ONE, TWO])
def test_custom_training_loop(mode, devices):
    strategy = rx.MirroredStrategy(devices)

    def replica_fn(x):
        return jnp.sum(jnp.square(x))

    with strategy.scope():

        @mode
        def train_epoch(epoch):
            total = 0.0
            for x in epoch:
                per_replica = strategy.run(replica_fn, args=(x,))
                total += strategy.reduce(rx.ReduceOp.SUM, per_replica, axis=None)
            return total

        data = [np.arange(4.0, dtype=np.float32), np.full(4, 2.0, np.float32)]
        results = [float(train_epoch(list(batches(strategy, *data)))) for _ in range(2)]
    assert results == [30.0, 30.0]


# Strategy.experimental_distribute_values_from_function, 1: the same constant for each replica.
def test_distribute_a_constant():
    strategy = rx.MirroredStrategy(ONE)
    values = strategy.experimental_distribute_values_from_function(lambda ctx: jnp.float32(1))
    assert repr(strategy.experimental_local_results(values)) == "(Array(1., dtype=float32),)"


def test_distribute_a_constant_to_two():
    strategy = rx.MirroredStrategy(TWO)
    values = strategy.distribute_values_from_function(lambda ctx: jnp.float32(1))
    assert [float(x) for x in strategy.local_results(values)] == [1.0, 1.0]


# The same, 2: an array's elements by replica.
def test_distribute_elements_by_replica_id():
    array = np.array([3.0, 2.0, 1.0])

    def value_fn(ctx):
        return array[ctx.replica_id_in_sync_group]

    for devices, expected in ((ONE, (3.0,)), (TWO, (3.0, 2.0))):
        strategy = rx.MirroredStrategy(devices)
        values = strategy.experimental_distribute_values_from_function(value_fn)
        assert strategy.experimental_local_results(values) == expected


# The same, 3: the number of replicas.
def test_distribute_the_number_of_replicas():
    for devices, expected in ((ONE, (1,)), (TWO, (2, 2))):
        strategy = rx.MirroredStrategy(devices)
        values = strategy.experimental_distribute_values_from_function(lambda ctx: ctx.num_replicas_in_sync)
        assert strategy.experimental_local_results(values) == expected


# The same, 4: values placed on the devices beforehand (a mirrored strategy in place of a TPU's).
def test_distribute_values_placed_on_devices():
    strategy = rx.MirroredStrategy(TWO)
    placed = []
    for i, name in enumerate(strategy.extended.worker_devices):
        assert name == f"CPU:{i}"
        placed.append(jax.device_put(jnp.array(1.0), jax.devices("cpu")[i]))
    values = strategy.experimental_distribute_values_from_function(
        lambda ctx: placed[ctx.replica_id_in_sync_group]
    )
    for i, value in enumerate(strategy.experimental_local_results(values)):
        assert float(value) == 1.0
        assert value.devices() == {jax.devices("cpu")[i]}


# Strategy.run, 1: a plain tensor as input.
def test_run_with_a_constant_input(mode):
    strategy = rx.MirroredStrategy(ONE)

    @mode
    def replica_fn(x):
        return x * 2.0

    result = strategy.run(replica_fn, args=(jnp.float32(3),))
    assert repr(result) == "Array(6., dtype=float32)"


def test_run_with_a_constant_input_on_two(mode):
    strategy = rx.MirroredStrategy(TWO)
    result = strategy.run(mode(lambda x: x * 2.0), args=(jnp.float32(3),))
    assert [float(x) for x in strategy.local_results(result)] == [6.0, 6.0]


# Strategy.run, 2: distributed values as input, made inside the compiled function.
def test_run_with_distributed_values(mode):
    strategy = rx.MirroredStrategy(ONE)

    @mode
    def step():
        values = strategy.experimental_distribute_values_from_function(lambda ctx: ctx.num_replicas_in_sync)
        return strategy.run(lambda x: x * 2, args=(values,))

    result = step()
    assert int(result) == 2


def test_run_with_distributed_values_on_two(mode):
    strategy = rx.MirroredStrategy(TWO)

    @mode
    def step():
        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: ctx.num_replicas_in_sync + ctx.replica_id_in_sync_group
        )
        return strategy.run(lambda x: x * 2, args=(values,))

    assert [int(x) for x in strategy.local_results(step())] == [4, 6]


# Strategy.scope: variables made inside and outside of the scope. MirroredStrategy, introduction, 1.
def test_variables_inside_and_outside_of_the_scope():
    strategy = rx.MirroredStrategy(ONE)
    with strategy.scope():
        mirrored = rx.Variable(1.0)
    line = "<rx.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>"
    assert repr(mirrored) == f"MirroredVariable:{{\n  0: {line}\n}}"
    regular = rx.Variable(1.0)
    assert repr(regular) == line


# Strategy.scope: a variable keeps its strategy, so reading and writing it works outside of the scope.
def test_variable_of_a_strategy_outside_of_its_scope():
    strategy = rx.MirroredStrategy(TWO)
    with strategy.scope():
        v = rx.Variable(1.0)
    v.assign_add(2.0)
    assert float(v.read_value()) == 3.0
    assert [float(copy.read_value()) for copy in strategy.local_results(v)] == [3.0, 3.0]


# Strategy.scope: what holds inside the scope and outside of it.
def test_scope_sets_the_current_strategy_and_cross_replica_context():
    strategy = rx.MirroredStrategy(TWO)
    assert not rx.has_strategy() and not rx.in_cross_replica_context()
    with strategy.scope():
        assert rx.get_strategy() is strategy
        assert rx.in_cross_replica_context()
    assert rx.get_strategy() is not strategy


# MirroredStrategy, introduction, 2: a variable made in a compiled function is mirrored as well.
@pytest.mark.parametrize("devices", [ONE, TWO])
def test_variable_created_in_a_function(mode, devices):
    made = []

    @mode
    def create_variable():
        if not made:
            made.append(rx.Variable(1.0))

    strategy = rx.MirroredStrategy(devices)
    with strategy.scope():
        create_variable()
        shown = str(made[0])
    lines = ["  0: <rx.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>"]
    if len(devices) == 2:
        lines.append("  1: <rx.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>")
    assert shown == "MirroredVariable:{\n" + ",\n".join(lines) + "\n}"
    assert len(made) == 1


# Strategy.reduce: a global batch of 8 on 2 replicas, combined across replicas only.
def test_reduce_across_replicas(mode):
    strategy = rx.MirroredStrategy(TWO)
    (x,) = batches(strategy, np.arange(8))
    total = mode(lambda x: strategy.reduce("SUM", x, axis=None))(x)
    np.testing.assert_array_equal(total, [0 + 4, 1 + 5, 2 + 6, 3 + 7])


# The same, across the batch too.
def test_reduce_across_replicas_and_the_batch(mode):
    strategy = rx.MirroredStrategy(TWO)
    (x,) = batches(strategy, np.arange(8))
    total = mode(lambda x: strategy.reduce("SUM", x, axis=0))(x)
    assert total.shape == () and int(total) == sum(range(8))


# The same, with a last batch of 6 that is 4 and 2: a mean over 6 examples.
def test_reduce_mean_of_a_partial_batch(mode):
    strategy = rx.MirroredStrategy(TWO)
    parts = [np.arange(4.0, dtype=np.float32), np.array([4.0, 5.0], np.float32)]
    x = strategy.distribute_values_from_function(lambda ctx: parts[ctx.replica_id_in_sync_group])
    mean = mode(lambda x: strategy.reduce("MEAN", x, axis=0))(x)
    assert float(mean) == pytest.approx(15 / 6)
    # Averaging the replicas' own means weighs the examples by 1/8 and 1/4 instead.
    local_means = strategy.run(mode(lambda x: jnp.mean(x)), args=(x,))
    uneven = strategy.reduce("MEAN", local_means, axis=None)
    assert float(uneven) == pytest.approx((0 + 1 + 2 + 3) / 8 + (4 + 5) / 4)


# The same: without an axis, the shapes of a partial batch do not fit.
def test_reduce_of_a_partial_batch_needs_an_axis(mode):
    strategy = rx.MirroredStrategy(TWO)
    parts = [np.arange(4.0), np.arange(2.0)]
    x = strategy.distribute_values_from_function(lambda ctx: parts[ctx.replica_id_in_sync_group])
    with pytest.raises(ValueError):
        mode(lambda x: strategy.reduce("SUM", x, axis=None))(x)


# Strategy.experimental_local_results: of a single value, a tuple with it.
def test_local_results_of_a_single_value():
    strategy = rx.MirroredStrategy(TWO)
    assert strategy.experimental_local_results(5) == (5,)


# Strategy.num_replicas_in_sync and cluster_resolver: a strategy of one machine has no resolver.
def test_attributes():
    strategy = rx.MirroredStrategy(TWO)
    assert strategy.num_replicas_in_sync == 2
    assert strategy.cluster_resolver is None


# MirroredStrategy(devices=None): all GPUs, or else all CPUs.
def test_mirrored_strategy_uses_all_devices():
    assert rx.MirroredStrategy().num_replicas_in_sync == len(jax.devices())
