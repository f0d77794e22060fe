"""Compiled steps whose variables, results or sizes are easy to get wrong."""

import copy
import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

SUM = rx.VariableAggregation.SUM


@pytest.fixture(params=[2, 3])
def strategy(request):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


@pytest.fixture(params=["eager", "compiled"])
def mode(request):
    return rx.function if request.param == "compiled" else lambda fn: fn


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def rows(strategy, make):
    return strategy.distribute_values_from_function(lambda ctx: make(ctx.replica_id_in_sync_group))


def test_variable_read_in_replicas_first_and_outside_afterwards(strategy, mode):
    with strategy.scope():
        v = rx.Variable(jnp.arange(3.0))
    x = rows(strategy, lambda i: jnp.full(2, i, jnp.float32))

    @mode
    def step(x):
        doubled = strategy.run(lambda: v.value * 2)
        return strategy.reduce("MEAN", doubled, None) + v.value + strategy.gather(x, 0)[-1]

    last = strategy.num_replicas_in_sync - 1
    np.testing.assert_allclose(step(x), 3 * np.arange(3.0) + last)


def test_indexed_update_of_a_variables_value_in_replicas(strategy, mode):
    with strategy.scope():
        v = rx.Variable(jnp.zeros(4))
    step = mode(lambda: strategy.run(lambda: v.value.at[replica_id()].set(1.0)))
    for i, part in enumerate(strategy.local_results(step())):
        np.testing.assert_array_equal(part, np.eye(4)[i])


def test_scatter_in_replicas(strategy, mode):
    with strategy.scope():
        v = rx.Variable(jnp.zeros((3, 2)), aggregation=SUM)

    def replica_fn():
        v.scatter_add(rx.IndexedSlices(jnp.ones((1, 2)), replica_id()[None]))

    mode(lambda: strategy.run(replica_fn))()
    expected = np.zeros((3, 2))
    expected[: strategy.num_replicas_in_sync] = 1
    np.testing.assert_array_equal(v.numpy(), expected)


MIRRORED_RESULTS = {
    "broadcast_to": lambda s, v: s.extended.broadcast_to(jnp.float32(3), v),
    "reduce_to": lambda s, v: s.extended.reduce_to("MEAN", rows(s, lambda i: jnp.float32(3)), v),
    "update_non_slot": lambda s, v: s.extended.update_non_slot(
        s.extended.non_slot_devices([v]), lambda x: x + 1, args=(jnp.float32(2),)
    ),
}


@pytest.mark.parametrize("what", MIRRORED_RESULTS)
def test_step_that_touches_no_variable_returns_a_mirrored_value(strategy, mode, what):
    with strategy.scope():
        v = rx.Variable(0.0)
    result = mode(lambda: MIRRORED_RESULTS[what](strategy, v))()
    assert isinstance(result, rx.Mirrored)
    assert [float(x) for x in result.values] == [3.0] * strategy.num_replicas_in_sync


def test_all_gather_of_one_value_for_all(strategy, mode):
    """Every replica contributes what it holds, whether or not it is the same object everywhere."""
    shared = jnp.arange(2.0)

    def replica_fn(x):
        return rx.get_replica_context().all_gather(x, axis=0) * 1

    result = mode(lambda: strategy.run(replica_fn, args=(shared,)))()
    for part in strategy.local_results(result):
        np.testing.assert_array_equal(part, np.tile(shared, strategy.num_replicas_in_sync))


def test_mean_of_integers_is_float_for_one_value_too(strategy, mode):
    value = jnp.int32(3)

    def replica_fn(x):
        return rx.get_replica_context().all_reduce("MEAN", x)

    mean = mode(lambda: strategy.reduce("MEAN", value, None))()
    assert mean.dtype == jnp.float32 and float(mean) == 3.0
    for part in strategy.local_results(mode(lambda: strategy.run(replica_fn, args=(value,)))()):
        assert part.dtype == jnp.float32 and float(part) == 3.0


EMPTY = {
    "reduce": lambda s, x: s.reduce("SUM", x, None),
    "gather": lambda s, x: s.gather(x, 0),
    "all_reduce": lambda s, x: s.reduce(
        "MEAN", s.run(lambda x: rx.get_replica_context().all_reduce("SUM", x), args=(x,)), None
    ),
    "all_gather": lambda s, x: s.reduce(
        "MEAN", s.run(lambda x: rx.get_replica_context().all_gather(x, 0), args=(x,)), None
    ),
}


@pytest.mark.parametrize("what", EMPTY)
def test_values_without_rows_on_any_replica(strategy, mode, what):
    x = rows(strategy, lambda i: jnp.zeros((0, 2)))
    result = mode(lambda x: EMPTY[what](strategy, x))(x)
    assert result.shape == (0, 2)


def test_variable_without_elements(strategy, mode):
    with strategy.scope():
        v = rx.Variable(
            jnp.zeros((0, 2)),
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=SUM,
        )
    mode(lambda: strategy.run(lambda: v.assign_add(jnp.ones((0, 2)), read_value=False)))()
    assert v.read_value().shape == (0, 2)


def test_reduce_to_the_place_of_a_numpy_array(strategy, mode):
    here = np.zeros(2, np.float32)
    x = rows(strategy, lambda i: jnp.float32(1))
    result = mode(lambda x: strategy.extended.reduce_to("SUM", x, here))(x)
    assert float(result) == strategy.num_replicas_in_sync


def test_one_replica_reduces_to_the_place_of_a_numpy_array(mode):
    strategy = rx.MirroredStrategy(["CPU:0"])

    def replica_fn(x):
        context = rx.get_replica_context()
        return context.merge_call(lambda s, x: s.extended.reduce_to("SUM", x, x), args=(x,))

    result = mode(lambda x: strategy.run(replica_fn, args=(x,)))(np.ones(2, np.float32))
    np.testing.assert_array_equal(result, np.ones(2))


def test_value_read_before_a_step_stays_valid(strategy):
    with strategy.scope():
        v = rx.Variable(jnp.zeros(3), aggregation=SUM)
    step = rx.function(lambda: strategy.run(lambda: v.assign_add(jnp.ones(3), read_value=False)))
    held = [v.value]
    for _ in range(3):
        step()
        held.append(v.value)
        held.append(strategy.local_results(v)[-1].read_value())
    count = strategy.num_replicas_in_sync
    firsts = [float(x[0]) for x in held]
    assert firsts == [0, *(count * i for i in (1, 1, 2, 2, 3, 3))]


def test_gradient_of_all_reduce(strategy, mode):
    """The gradient of a sum over replicas is the sum of the replicas' gradients."""

    def loss(x):
        scale = rx.get_replica_context().replica_id_in_sync_group + 1.0
        return scale * rx.get_replica_context().all_reduce("SUM", x**2)

    x = rows(strategy, lambda i: jnp.float32(i + 1))
    result = mode(lambda x: strategy.run(jax.grad(loss), args=(x,)))(x)
    count = strategy.num_replicas_in_sync
    scales = sum(range(1, count + 1))
    assert [float(g) for g in strategy.local_results(result)] == [
        2.0 * (i + 1) * scales for i in range(count)
    ]


@pytest.mark.parametrize(
    "make", [lambda: rx.OneDeviceStrategy("CPU:1"), lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"])]
)
def test_a_batch_is_compiled_for_once(make, caplog):
    strategy = make()
    with strategy.scope():
        w = rx.Variable(1.0)

    @rx.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(w * x), args=(batch,)), axis=None)

    dataset = strategy.distribute_dataset(rx.from_arrays(np.ones(24, np.float32)).batch(4))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        total = sum(float(step(batch)) for batch in dataset)
    compiled = [r for r in caplog.records if "Compiling jit(step)" in r.getMessage()]
    assert total == 24.0 and len(compiled) == 1


@pytest.mark.parametrize("write", ["function", "update"])
def test_what_the_first_call_of_a_step_writes_by_way_of_others_is_written_once(strategy, write):
    with strategy.scope():
        counter = rx.Variable(0.0)
    add = rx.function(lambda: counter.assign_add(1.0, read_value=False))
    for _ in range(3):
        add()
    made = []

    @rx.function
    def step(x):
        if not made:  # the initial value is traced: an eager call computes it, and its writes are undone
            with strategy.scope():
                made.append(rx.Variable(2 * x))
        if write == "function":
            add()
        else:
            strategy.extended.update(counter, lambda copy: copy.assign_add(1.0))
        return made[0].read_value()

    assert step(jnp.float32(4)) == 8
    assert counter.numpy() == 4
    step(jnp.float32(4))
    assert counter.numpy() == 5


def test_compiled_function_in_the_update_of_a_copy_writes_that_copy(strategy):
    with strategy.scope():
        v = rx.Variable(1.0)
        add = rx.function(lambda: v.assign_add(5.0, read_value=False))
        add()
        strategy.extended.update(v, lambda copy: add())
    assert v.numpy() == 11
    assert [float(copy) for copy in strategy.local_results(v)] == [11] * strategy.num_replicas_in_sync


def test_complex_constants_that_differ_in_the_sign_of_zero_or_are_not_numbers():
    sign = rx.function(lambda c: jnp.float32(np.copysign(1, c.imag)))
    assert [float(sign(complex(0, x))) for x in (0.0, -0.0)] == [1, -1]
    assert sign.num_programs == 2
    for _ in range(2):
        sign(complex(float("nan"), 0))
    assert sign.num_programs == 3


def test_copy_of_a_variable_in_a_compiled_step_is_refused(strategy):
    with strategy.scope():
        v = rx.Variable(1.0)
    with pytest.raises(rx.errors.TracingError, match="copied while a step is being traced"):
        rx.function(lambda: copy.deepcopy(v).read_value())()


def test_an_object_that_jax_does_not_look_into_is_not_returned_with_traced_arrays(strategy):
    @dataclasses.dataclass
    class Result:
        loss: Any

    def replica_fn():
        return Result(replica_id())

    for step in (lambda: strategy.run(replica_fn), lambda x: Result(x)):
        arguments = () if step.__code__.co_argcount == 0 else (jnp.ones(2),)
        with pytest.raises(rx.errors.TracingError, match=r"Result.*'loss'.*pytree"):
            rx.function(step)(*arguments)
    assert rx.function(lambda: Result("text"))().loss == "text"
    jax.tree_util.register_dataclass(Result, ["loss"], [])
    losses = rx.function(lambda: strategy.run(replica_fn))().loss
    assert [int(loss) for loss in strategy.local_results(losses)] == list(
        range(strategy.num_replicas_in_sync)
    )


@pytest.fixture
def compilations():
    """The programs that XLA has compiled, or read from the cache, since the test has begun."""
    events = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(
    "make",
    [
        rx.get_strategy,
        lambda: rx.OneDeviceStrategy("CPU:0"),
        lambda: rx.MirroredStrategy(["CPU:0"]),
        lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
        lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
        lambda: rx.ShardedStrategy(["CPU:0", "CPU:1"], min_shard_bytes=1),
    ],
    ids=["default", "one_device", "mirrored_1", "mirrored_2", "central", "sharded_2"],
)
def test_a_training_step_is_compiled_once(make, compilations):
    strategy = make()
    with strategy.scope():
        w = rx.Variable(np.ones((4, 2), np.float32))
        optimizer = rx.Optimizer(optax.adam(0.1))
    optimizer.build([w])

    @rx.function
    def step(x):
        losses = strategy.run(lambda x: optimizer.minimize(lambda: jnp.mean((x @ w) ** 2), [w]), args=(x,))
        return strategy.reduce("MEAN", losses, axis=None)

    batches = list(strategy.distribute_dataset(rx.from_arrays(np.ones((24, 4), np.float32)).batch(8)))
    counts = []
    for batch in batches:
        before = len(compilations)
        step(batch)
        counts.append(len(compilations) - before)
    assert counts[1:] == [0, 0]
