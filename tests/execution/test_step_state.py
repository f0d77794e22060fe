"""Compiled steps donate the arrays that they write; reads and writes elsewhere see the right values."""

import copy
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

MEAN = rx.VariableAggregation.MEAN


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def variable(strategy, value):
    with strategy.scope():
        return rx.Variable(value, aggregation=MEAN)


def adder(strategy, v):
    @rx.function
    def step(x):
        return strategy.reduce("MEAN", strategy.run(lambda x: v.assign_add(x), args=(x,)), axis=None)

    return step


def test_reads_and_writes_between_runs(strategy):
    v = variable(strategy, 0.0)
    step, one = adder(strategy, v), jnp.float32(1)
    kept = []
    for i in range(6):
        step(one)
        kept.append(v.value)
        if i == 3:
            v.assign(100.0)
    assert [float(x) for x in kept] == [1, 2, 3, 4, 101, 102]
    assert float(v) == 102


def test_two_steps_share_variables(strategy):
    v = variable(strategy, 0.0)
    first, second = adder(strategy, v), adder(strategy, v)
    total = rx.function(lambda: v.read_value() * 10)
    for _ in range(4):
        first(jnp.float32(1))
        second(jnp.float32(2))
        first(jnp.float32(1))
        total()
    assert float(v) == 16
    assert float(total()) == 160


def test_a_variable_as_argument_of_a_step_that_had_arrays(strategy):
    v = variable(strategy, jnp.ones(3))
    step = adder(strategy, v)
    for _ in range(3):
        step(jnp.ones(3))
    step(v)
    np.testing.assert_array_equal(v.numpy(), [8, 8, 8])


def test_a_variable_written_as_argument(strategy):
    w = variable(strategy, 1.0)

    @rx.function
    def step(x):
        if isinstance(x, rx.Variable):
            x.assign_add(1.0)
        return jnp.asarray(x)

    for _ in range(3):
        step(jnp.float32(5))
    step(w)
    step({"nested": w}["nested"])
    assert float(w) == 3


def test_a_python_number_stays_a_constant(strategy):
    seen = []
    step = rx.function(lambda x: seen.append(x) or jnp.asarray(x) * 2)
    for _ in range(3):
        step(jnp.asarray(1.0))
    assert float(step(3.0)) == 6
    assert seen[-1] == 3.0 and isinstance(seen[-1], float)


@pytest.mark.parametrize("reader", ["reads", "steps"])
def test_another_thread(strategy, reader):
    v = variable(strategy, 0.0)
    step, one = adder(strategy, v), jnp.float32(1)
    step(one)
    errors = []

    def work():
        try:
            for _ in range(100):
                v.numpy() if reader == "reads" else step(one)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(100):
        step(one)
    thread.join()
    assert not errors
    assert float(v) == (101 if reader == "reads" else 201)


def test_a_step_that_fails_when_it_runs_says_which_variables_it_lost():
    v = rx.Variable(jnp.zeros(2), name="weights")

    def check(x):
        if x > 2:
            raise ArithmeticError("too large")
        return np.float32(x)

    @rx.function
    def step(x):
        v.assign_add(jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), x))
        return v.value

    for _ in range(3):
        step(jnp.float32(1))
    with pytest.raises(Exception, match="too large"):
        jax.block_until_ready(step(jnp.float32(5)))
    v.assign(jnp.zeros(2))
    np.testing.assert_array_equal(step(jnp.float32(2)), [2, 2])


def test_a_failing_run_is_not_repeated():
    calls = []

    def count(x):
        calls.append(float(x))
        if x > 2:
            raise ValueError("boom")
        return np.float32(x)

    step = rx.function(lambda x: jax.pure_callback(count, jax.ShapeDtypeStruct((), jnp.float32), x))
    for _ in range(3):
        jax.block_until_ready(step(jnp.float32(1)))
    with pytest.raises(Exception, match="boom"):
        jax.block_until_ready(step(jnp.float32(5)))
    assert calls == [1, 1, 1, 5]


def inner(v):
    @jax.jit
    def read(x):
        return x + v.value

    return read


def scanned(v):
    def body(carry, _):
        return carry + v.value, None

    return lambda x: jax.lax.scan(body, x, None, length=1)[0]


def checkpointed(v):
    return jax.checkpoint(lambda x: x + v.value)


@pytest.mark.parametrize("reading", [inner, scanned, checkpointed])
@pytest.mark.parametrize("in_replica", [False, True])
def test_nested_reads_see_writes_of_the_same_step(strategy, reading, in_replica):
    v = variable(strategy, 0.0)
    read = reading(v)

    def twice(x):
        before = read(x)
        v.assign_add(1.0)
        return before, read(x)

    @rx.function
    def step(x):
        result = strategy.run(twice, args=(x,)) if in_replica else twice(x)
        return jax.tree.map(lambda part: strategy.reduce("MEAN", part, axis=None), result, is_leaf=is_value)

    for start in (0, 1, 2):
        assert [float(x) for x in step(jnp.float32(0))] == [start, start + 1]


def is_value(x):
    return isinstance(x, rx.PerReplica)


class Base:
    def __init__(self, strategy):
        self.v = variable(strategy, 1.0)

    @rx.function
    def step(self, x):
        return self.v.value + x


class Derived(Base):
    @rx.function
    def step(self, x):
        return super().step(x) * 10


def test_methods_of_base_classes_and_copies(strategy):
    model = Derived(strategy)
    assert [float(model.step(jnp.float32(1))) for _ in range(3)] == [20, 20, 20]
    twin, shallow = copy.deepcopy(model), copy.copy(model)
    twin.v.assign(4.0)
    assert float(twin.step(jnp.float32(1))) == 50
    assert float(shallow.step(jnp.float32(1))) == 20


def test_typed_random_keys(strategy):
    key = jax.random.key(0)

    def draw(key):
        return jax.random.uniform(
            jax.random.fold_in(key, rx.get_replica_context().replica_id_in_sync_group)
        )

    eager = strategy.gather(strategy.run(lambda k: draw(k)[None], args=(key,)), axis=0)
    step = rx.function(
        lambda key: strategy.gather(strategy.run(lambda k: draw(k)[None], args=(key,)), axis=0)
    )
    np.testing.assert_allclose(step(key), eager, rtol=1e-6)
    keys = strategy.distribute_values_from_function(
        lambda ctx: jax.random.key(ctx.replica_id_in_sync_group)
    )
    bits = rx.function(lambda keys: strategy.run(lambda k: jax.random.bits(k), args=(keys,)))(keys)
    expected = [int(jax.random.bits(jax.random.key(i))) for i in range(2)]
    assert [int(x) for x in strategy.local_results(bits)] == expected
    split = rx.function(lambda keys: strategy.run(lambda k: jax.random.split(k)[0], args=(keys,)))(keys)
    found = [jax.random.key_data(k).tolist() for k in strategy.local_results(split)]
    assert found == [jax.random.key_data(jax.random.split(jax.random.key(i))[0]).tolist() for i in range(2)]
    with pytest.raises(ValueError, match="key_data"):
        rx.Variable(key)


def test_python_integers_fit_small_variables(strategy):
    v = variable(strategy, jnp.zeros((), jnp.float32))
    u = rx.Variable(np.uint8(1))
    u.assign(5)
    u.assign_add(1)
    assert int(u) == 6 and u.dtype == np.uint8
    with pytest.raises(ValueError, match="not between 0 and 255"):
        u.assign(256)
    assert f"{v:.2f}" == "0.00"


def test_arguments_on_other_devices_do_not_move_variables():
    v = rx.Variable(jnp.ones(3))
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    @rx.function
    def step(x):
        v.assign_add(x)
        return 2 * x

    one, zero = (jax.device_put(jnp.ones(3), jax.devices("cpu")[i]) for i in (1, 0))
    for x in [jnp.ones(3), one, zero, strategy.mesh.replicate(jnp.ones(3)), np.ones(3, np.float32)] * 2:
        assert step(x).devices() == v.value.devices() == {v.device}
    assert step.num_programs == 1
    np.testing.assert_array_equal(v.value, [11.0] * 3)


def test_a_step_that_writes_nothing_runs_where_its_arguments_are():
    v, device = rx.Variable(jnp.ones(3)), jax.devices("cpu")[1]
    step = rx.function(lambda x: v * x)
    for _ in range(3):
        assert step(jax.device_put(jnp.ones(3), device)).devices() == {device}


def test_a_copy_has_a_state_of_its_own():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = rx.Variable(jnp.ones(3))
    other = copy.copy(v)
    step = rx.function(lambda: v.assign_add(jnp.ones(3), read_value=False))
    step()
    step()
    assert np.asarray(other.read_value()).tolist() == [1, 1, 1]
    assert np.asarray(v.read_value()).tolist() == [3, 3, 3]
