"""Exceptions that arrive at any moment of a loop of compiled steps: nothing is lost or half written."""

import contextlib
import os
import random
import signal
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

SUM = rx.VariableAggregation.SUM


@contextlib.contextmanager
def interrupts(seed, at_most):
    """Send SIGINT to this process again and again at random times, while the block runs."""
    stop, chance = threading.Event(), random.Random(seed)

    def send():
        while not stop.wait(chance.uniform(0, at_most)):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # An interrupt inside of a destructor or a callback of the garbage collector goes no further.
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, before)


def through_interrupts(loop, times, seed=0, at_most=0.02):
    """Call `loop`, which never returns, until it was interrupted that many times."""
    count = 0
    with contextlib.suppress(KeyboardInterrupt), interrupts(seed, at_most):
        while count < times:
            try:
                loop()
            except KeyboardInterrupt:
                count += 1
    return count


def make_counters(strategy, count, shape=(3,)):
    with strategy.scope():
        return [rx.Variable(jnp.zeros(shape), aggregation=SUM) for _ in range(count)]


def counting_step(strategy, counters):
    @rx.function
    def step(x):
        def replica_fn(x):
            for counter in counters:
                counter.assign_add(x)
            return x

        return strategy.run(replica_fn, args=(x,))

    return step


STRATEGIES = {
    "mirrored": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
}


@pytest.mark.parametrize("kind", STRATEGIES)
def test_interrupted_compiled_loop_loses_nothing(kind):
    strategy = STRATEGIES[kind]()
    counters = make_counters(strategy, 300)
    step = counting_step(strategy, counters)
    half = jnp.float32(1 / strategy.num_replicas_in_sync)
    step(half)

    def loop():
        while True:
            step(half)

    through_interrupts(loop, 60)
    values = {float(value) for counter in counters for value in counter.numpy().ravel()}
    assert len(values) == 1, "some variables are one step ahead of others"
    (before,) = values
    assert before >= 1
    step(half)
    assert {float(v) for c in counters for v in c.numpy().ravel()} == {before + 1}


def test_variables_of_several_strategies_in_one_interrupted_step():
    strategy, other = STRATEGIES["mirrored"](), STRATEGIES["mirrored"]()
    counters = [*make_counters(strategy, 20), rx.Variable(jnp.zeros(3)), *make_counters(other, 20)]
    step = rx.function(lambda: [counter.assign_add(jnp.ones(3)) for counter in counters])

    def loop():
        while True:
            step()

    step()
    through_interrupts(loop, 30)
    assert len({float(v) for c in counters for v in c.numpy().ravel()}) == 1


class Boom(Exception):
    pass


@pytest.mark.parametrize("line", range(40))
def test_an_exception_between_any_two_lines(line):
    """A trace function raises at the n-th line that Replicax executes in a warm call.

    The argument is committed, so that it is placed in Python even where the rest of the call is in C.
    """
    strategy = STRATEGIES["mirrored"]()
    counters = make_counters(strategy, 5)
    step = counting_step(strategy, counters)
    half = jax.device_put(jnp.float32(0.5), jax.devices("cpu")[1])
    step(half), step(half)
    executed = 0

    def trace(frame, event, arg):
        nonlocal executed
        if "replicax" not in frame.f_code.co_filename.split(os.sep):
            return None
        if event == "line":
            executed += 1
            if executed > line:
                sys.settrace(None)
                raise Boom
        return trace

    sys.settrace(trace)
    try:
        step(half)
        raised = False
    except Boom:
        raised = True
    finally:
        sys.settrace(None)
    values = {float(v) for counter in counters for v in counter.numpy()}
    assert values in ({2.0}, {3.0}) if raised else values == {3.0}
    assert step(half) is not None
    assert {float(v) for counter in counters for v in counter.numpy()} == {max(values) + 1}
    assert strategy.store.unfinished is None
    assert raised or line > 5, "the trace function saw fewer lines than expected"


def test_eager_loop_can_be_interrupted():
    strategy = STRATEGIES["mirrored"]()
    counters = make_counters(strategy, 5)

    def loop():
        while True:
            for counter in counters:
                counter.assign_add(jnp.ones(3))

    through_interrupts(loop, 40)
    for counter in counters:
        for copy in strategy.local_results(counter):
            np.testing.assert_array_equal(copy.numpy(), counter.numpy())
        assert len(set(counter.numpy().tolist())) == 1


def test_megabytes_survive():
    strategy = STRATEGIES["mirrored"]()
    counters = make_counters(strategy, 100, (512, 512))
    step = counting_step(strategy, counters)
    half = jnp.float32(0.5)
    step(half)

    def loop():
        while True:
            step(half)

    through_interrupts(loop, 10, at_most=0.2)
    assert len({float(c.numpy()[i, i]) for c in counters for i in (0, 511)}) == 1
    assert not any(counter.value.is_deleted() for counter in counters)
