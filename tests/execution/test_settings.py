"""JAX's settings: a step that is called under other settings is traced with them, as `jax.jit` does."""

import threading

import jax
import jax.numpy as jnp
import pytest

import replicax as rx

PRECISIONS = [None, "highest", "default"]


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def current_precision():
    return jnp.int32(PRECISIONS.index(jax.config.jax_default_matmul_precision))


@pytest.mark.parametrize("structured", [False, True])
def test_each_call_gets_the_settings_around_it(strategy, structured):
    @rx.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(current_precision), axis=None)

    x = strategy.distribute_values_from_function(lambda _: jnp.ones(2))
    argument = {"x": x} if structured else x
    for _ in range(3):
        assert step(argument) == 0
        with jax.default_matmul_precision("highest"):
            assert step(argument) == 2
            with strategy.scope():
                assert step(argument) == 2
        with jax.default_matmul_precision("default"):
            assert step(argument) == 4
    assert step.num_programs == 4


def test_many_steps_get_the_settings_around_them():
    step = rx.function(lambda x: x + current_precision())
    batches = [jnp.int32(10), jnp.int32(20)]
    assert [int(x) for x in step.many(batches)] == [10, 20]
    with jax.default_matmul_precision("highest"):
        assert [int(x) for x in step.many(batches)] == [11, 21]


def test_the_settings_of_other_threads_do_not_matter():
    step = rx.function(lambda x: x + current_precision())
    x, found = jnp.int32(0), []

    def call():
        with jax.default_matmul_precision("highest"):
            inside.set()
            for _ in range(200):
                found.append(int(step(x)))

    inside = threading.Event()
    thread = threading.Thread(target=call)
    thread.start()
    inside.wait(30)
    here = [int(step(x)) for _ in range(200)]
    thread.join(60)
    assert set(here) == {0} and set(found) == {1}


def test_a_step_that_is_traced_again_blocks_no_reader(strategy):
    with strategy.scope():
        v = rx.Variable(1.0, aggregation="SUM")
    read = []

    @rx.function
    def step():
        thread = threading.Thread(target=lambda: read.append(float(v)))
        thread.start()
        thread.join(30)
        strategy.run(lambda: v.assign_add(1.0))

    step()
    with jax.default_matmul_precision("highest"):
        step()
    assert read[0] == 1 and read[-1] == 3


def test_the_reason_is_named():
    step = rx.function(lambda x: 2 * x)
    step(jnp.ones(2))
    with jax.default_matmul_precision("highest"):
        step(jnp.ones(2))
    assert step.retraces == ["it is called with other settings of JAX (`jax.config` or a `with` block)"]
