"""Eager updates of `rx.Optimizer` are atomic: in several threads, and when an exception interrupts them."""

import os
import sys
import threading

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.threads import in_threads

import replicax as rx
from replicax.variables import Store

from .helpers import mirrored

NUM_UPDATES = 60
STRATEGIES = {
    "default": rx.get_strategy,
    "mirrored": lambda: mirrored(2),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "sharded": lambda: rx.ShardedStrategy(["CPU:0", "CPU:1"], min_shard_bytes=0, shard="all"),
}


class Counting:
    """After n updates the momentum is n, and every variable is 1 + 2 + ... + n."""

    def __init__(self, kind, **options):
        self.strategy = STRATEGIES[kind]()
        with self.strategy.scope():
            self.variables = [rx.Variable(jnp.zeros(4), name=f"v{i}") for i in range(3)]
            self.optimizer = rx.Optimizer(optax.sgd(1.0, momentum=1.0), **options)

    def update(self):
        scale = self.optimizer.loss_scale
        gradient = jnp.full(4, -1.0 if scale is None else -scale.scale.read_value())
        self.optimizer.apply_gradients([(gradient, v) for v in self.variables])

    def count(self):
        """The number of updates, which all variables and slots agree on."""
        (count,) = {float(-x) for slot in self.optimizer.slots for x in slot.numpy()}
        for variable in self.variables:
            np.testing.assert_array_equal(variable.numpy(), np.full(4, count * (count + 1) / 2))
        assert int(self.optimizer.iterations) == count
        return int(count)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_updates_of_several_threads_all_arrive(kind):
    counting = Counting(kind)

    def work():
        for _ in range(NUM_UPDATES):
            counting.update()

    in_threads(work, work)
    assert counting.count() == 2 * NUM_UPDATES


def test_eager_and_compiled_updates_all_arrive():
    counting = Counting("mirrored")
    compiled = rx.function(counting.update)

    def work(update):
        for _ in range(NUM_UPDATES):
            update()

    in_threads(lambda: work(counting.update), lambda: work(compiled))
    assert counting.count() == 2 * NUM_UPDATES


def test_first_updates_of_several_threads_share_their_slots():
    for _ in range(5):
        counting = Counting("mirrored")
        in_threads(*[counting.update] * 4)
        assert counting.count() == 4


def test_the_store_is_not_locked_while_optax_is_traced():
    started, done = threading.Event(), threading.Event()
    v, unrelated = rx.Variable(1.0), rx.Variable(2.0)

    def update(updates, state, params=None):
        started.set()
        assert done.wait(60), "reading waited for an update that is being traced"
        return updates, state

    optimizer = rx.Optimizer(optax.GradientTransformation(lambda params: optax.EmptyState(), update))

    def read():
        assert started.wait(60)
        unrelated.assign_add(float(v))
        done.set()

    in_threads(lambda: optimizer.apply_gradients([(jnp.float32(1.0), v)]), read)
    assert (float(v), float(unrelated)) == (2.0, 3.0)


class Boom(BaseException):
    pass


FILES = {"_optimizer.py", "_frames.py", "_store.py"}


def interrupted(function, line):
    """Call `function`, and raise at the n-th line that it executes in `FILES`; returns whether it has."""
    executed = 0

    def trace(frame, event, arg):
        nonlocal executed
        folder, name = os.path.split(frame.f_code.co_filename)
        if "replicax" not in folder or name not in FILES:
            return None
        if frame.f_code is Store.remove.__code__:
            return None  # the garbage collector calls it, and Python ignores exceptions there
        if event == "line":
            executed += 1
            if executed > line:
                sys.settrace(None)
                raise Boom
        return trace

    sys.settrace(trace)
    try:
        function()
    except Boom:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("kind", ["default", "mirrored"])
@pytest.mark.parametrize("scaled", [False, True])
def test_an_interrupted_update_is_made_or_not(kind, scaled):
    scale = rx.DynamicLossScale(initial_scale=1.0) if scaled else None
    counting = Counting(kind, loss_scale=scale)
    counting.update()
    count, line = 1, 0
    while interrupted(counting.update, line):
        found = counting.count()
        assert found in (count, count + 1), f"line {line}"
        counting.update()
        assert counting.count() == found + 1
        assert not rx.has_strategy()
        count, line = found + 1, line + 1
    assert line > 100, "the trace function saw fewer lines than expected"
    assert counting.count() == count + 1
    assert counting.strategy.store.unfinished is None
