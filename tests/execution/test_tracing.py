"""How often a compiled step calls the user's function: once, for any number of replicas.

Twice if replicas use variables that differ between them, which must be known before they are traced.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

COUNTS = (1, 2, 3, 8)


def mirrored(num_replicas):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


class Counted:
    """A replica function that counts its calls."""

    def __init__(self, strategy, mean="on_write"):
        self.calls = 0
        with strategy.scope():
            self.total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
            self.mean = rx.Variable(
                0.0,
                synchronization=rx.VariableSynchronization[mean.upper()],
                aggregation=rx.VariableAggregation.MEAN,
            )

    def __call__(self, x):
        self.calls += 1
        ctx = rx.get_replica_context()
        self.total.assign_add(jnp.sum(x))
        self.mean.assign_add(ctx.all_reduce("MEAN", jnp.sum(x)))
        return ctx.merge_call(lambda strategy, x: strategy.extended.reduce_to("SUM", x, x), args=(x,))


def batch(strategy, rows):
    return strategy.distribute_values_from_function(lambda ctx: np.ones(rows, np.float32))


def calls_of_step(num_replicas, mean):
    strategy = mirrored(num_replicas)
    replica_fn = Counted(strategy, mean)
    step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
    first = step(batch(strategy, 4))
    calls = replica_fn.calls
    for _ in range(3):
        step(batch(strategy, 4))
    assert replica_fn.calls == calls, "traced again for the same shapes"
    assert float(strategy.local_results(first)[0][0]) == num_replicas
    assert float(replica_fn.total.value) == 4 * 4 * num_replicas
    return calls


def test_a_step_is_traced_once():
    assert {count: calls_of_step(count, "on_write") for count in COUNTS} == dict.fromkeys(COUNTS, 1)


def test_a_step_with_variables_that_differ_between_replicas_is_traced_twice():
    assert {count: calls_of_step(count, "on_read") for count in COUNTS} == {1: 1, 2: 2, 3: 2, 8: 2}


def test_calls_of_a_compiled_replica_function():
    calls = {}
    for count in COUNTS:
        strategy = mirrored(count)
        replica_fn = Counted(strategy)
        compiled = rx.function(replica_fn)
        for _ in range(3):
            strategy.run(compiled, args=(batch(strategy, 4),))
        calls[count] = replica_fn.calls
    assert calls == dict.fromkeys(COUNTS, 1)


def test_a_new_shape_is_traced_once_more():
    strategy = mirrored(2)
    replica_fn = Counted(strategy)
    step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
    step(batch(strategy, 4))
    once = replica_fn.calls
    step(batch(strategy, 3))
    twice = replica_fn.calls
    assert once < twice <= 2 * once
    step(batch(strategy, 4))
    step(batch(strategy, 3))
    assert replica_fn.calls == twice
    assert step.num_programs == 2


@pytest.mark.parametrize("num_replicas", COUNTS)
def test_writing_a_variable_between_steps_does_not_trace_again(num_replicas):
    strategy = mirrored(num_replicas)
    replica_fn = Counted(strategy)
    step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
    step(batch(strategy, 4))
    calls = replica_fn.calls
    replica_fn.total.assign(100.0)
    replica_fn.mean.assign(7.0)
    strategy.run(lambda: replica_fn.total.assign_add(jnp.float32(1)))
    step(batch(strategy, 4))
    assert replica_fn.calls == calls
    assert float(replica_fn.total.value) == 100 + num_replicas + 4 * num_replicas
    assert float(replica_fn.mean.read_value()) == 7 + 4


def test_eager_calls_once_for_each_replica():
    for count in COUNTS:
        strategy = mirrored(count)
        replica_fn = Counted(strategy)
        strategy.run(replica_fn, args=(batch(strategy, 4),))
        assert replica_fn.calls == count


def test_retracing_names_a_per_replica_argument(caplog):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    step = rx.function(lambda batch: strategy.run(lambda batch: batch["x"] * 2, args=(batch,)))
    for size in (2, 3, 4):
        rows = strategy.distribute_values_from_function(lambda _, size=size: np.ones(size, np.float32))
        step({"x": rows})
    assert "argument 0['x'] was float32[6] and is float32[8]" in caplog.text
