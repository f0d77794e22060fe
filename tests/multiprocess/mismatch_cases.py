"""Processes that do different things get an error that names them, before anything is sent."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
from tests.multiprocess.cases import depends_on

import replicax as rx
import replicax.errors


def process():
    return jax.process_index()


def mismatch(call):
    try:
        call()
    except replicax.errors.CollectiveMismatchError as error:
        return str(error)
    raise AssertionError("no error")


def assert_named(message, *parts):
    lines = message.splitlines()
    for i in range(jax.process_count()):
        assert lines[i + 1].startswith(f"  process {i}: collective "), message
    assert message.count("mismatch_cases.py:") == jax.process_count(), message
    for part in parts:
        assert part in message, message


def assert_unharmed(strategy):
    """The next collectives work, eager and compiled."""
    n = strategy.num_replicas_in_sync
    for mode in (rx.function, lambda step: step):
        step = mode(lambda: strategy.reduce("SUM", strategy.run(lambda: jnp.arange(3.0)), axis=None))
        np.testing.assert_array_equal(np.asarray(step()), n * np.arange(3.0))


@depends_on("workers")
def check_reduce_of_different_shapes(strategy, mode):
    rows = strategy.run(lambda: jnp.ones(2 + process()))
    step = mode(lambda rows: strategy.reduce("SUM", rows, axis=None))
    message = mismatch(lambda: step(rows))
    assert_named(message, "[2]" if mode is not rx.function else "step check_reduce", "Nothing was sent.")
    assert_unharmed(strategy)


@depends_on("workers")
def check_all_reduce_of_different_shapes(strategy, mode):
    def replica_fn():
        return rx.get_replica_context().all_reduce("SUM", jnp.ones(2 + process()))

    assert_named(mismatch(lambda: mode(lambda: strategy.run(replica_fn))()))
    assert_unharmed(strategy)


@depends_on("workers")
def check_different_collectives(strategy, mode):
    """One process reduces while the others gather."""
    rows = strategy.run(lambda: jnp.ones(7))
    reduce = mode(lambda rows: strategy.reduce("SUM", rows, axis=None))
    gather = mode(lambda rows: strategy.gather(rows, axis=0))
    assert_named(mismatch(lambda: (gather if process() else reduce)(rows)))
    assert_unharmed(strategy)


def check_variables_in_another_order(strategy, mode):
    sizes = [3, 4000] if process() == 0 else [4000, 3]
    with strategy.scope():
        message = mismatch(lambda: rx.Variable(np.ones(sizes[0]), name="w"))
        assert_named(message, "variable 'w' of float32[3]", "variable 'w' of float32[4000]")
        mismatch(lambda: rx.Variable(np.ones(sizes[1]), name="w"))
    assert_unharmed(strategy)


def check_an_additional_variable(strategy, mode):
    """One process creates a variable more: the others' next collective is not the variable's."""
    rows = strategy.run(lambda: jnp.ones(2))
    with strategy.scope():
        if process() == 0:
            message = mismatch(lambda: rx.Variable(1.0, name="more"))
        else:
            message = mismatch(lambda: strategy.reduce("SUM", rows, axis=None))
    assert_named(message, "variable 'more' of float32[]", "all-reduce SUM of float32[2]")
    assert_unharmed(strategy)


def check_steps_of_two_threads(strategy, mode):
    """Collectives of another thread follow those of this one; programs of two threads never mix."""
    rows = strategy.run(lambda: jnp.ones(200_000))
    step = mode(lambda x: strategy.reduce("SUM", strategy.run(lambda x: 2 * x, args=(x,)), axis=None))
    found = []
    for _ in range(3):
        found.append(step(rows))
        thread = threading.Thread(target=lambda: found.append(step(rows)))
        thread.start()
        thread.join()
    for total in found:
        np.testing.assert_array_equal(
            np.asarray(total), np.full(200_000, 2.0 * strategy.num_replicas_in_sync)
        )


def check_a_step_without_collectives_runs_in_one_process(strategy, mode):
    with strategy.scope():
        v = rx.Variable(3.0)
    step = mode(lambda x: v.value * x)
    if process() == 0:
        assert float(step(jnp.float32(2.0))) == 6.0
    assert_unharmed(strategy)
