"""Several threads: eager writes are not lost, compiling blocks no reader, first calls do not collide."""

import gc
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.threads import in_threads

import replicax as rx
from replicax.variables._writes import Write

SUM = rx.VariableAggregation.SUM


STRATEGIES = {
    "mirrored": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
    "default": rx.get_strategy,
}


@pytest.mark.parametrize("kind", STRATEGIES)
def test_eager_writes_of_several_threads_all_arrive(kind):
    with STRATEGIES[kind]().scope():
        v = rx.Variable(jnp.zeros(1000))

    def add():
        for _ in range(40):
            v.assign_add(jnp.ones(1000))

    in_threads(*[add] * 6)
    np.testing.assert_array_equal(v.numpy(), np.full(1000, 240.0))


def test_eager_and_compiled_writes_of_several_threads_all_arrive():
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        variables = [rx.Variable(jnp.zeros(100), aggregation=SUM) for _ in range(30)]

    @rx.function
    def step():
        strategy.run(lambda: [v.assign_add(jnp.full(100, 0.5)) for v in variables] and None)

    def compiled():
        for _ in range(50):
            step()

    def eager():
        for _ in range(20):
            for v in variables:
                v.assign_add(jnp.ones(100))

    def reader():
        for _ in range(50):
            for v in variables:
                assert np.isfinite(v.numpy()).all()

    in_threads(compiled, compiled, eager, eager, reader)
    for v in variables:
        np.testing.assert_array_equal(v.numpy(), np.full(100, 140.0))


def test_a_step_that_compiles_blocks_no_reader():
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        used, unrelated = rx.Variable(1.0, aggregation=SUM), rx.Variable(2.0)
    compiling, done = threading.Event(), threading.Event()

    @rx.function
    def step():
        compiling.set()
        assert done.wait(60), "reading waited for a step that is being traced"
        strategy.run(lambda: used.assign_add(1.0))

    def read():
        assert compiling.wait(60)
        assert float(unrelated) == 2.0
        assert float(used) == 1.0
        unrelated.assign(3.0)
        done.set()

    in_threads(step, read)
    assert (float(used), float(unrelated)) == (3.0, 3.0)


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
def test_an_eager_write_that_compiles_blocks_no_reader(kind, synchronization, monkeypatch):
    with STRATEGIES[kind]().scope():
        written = rx.Variable(1.0, synchronization=synchronization, aggregation="ONLY_FIRST_REPLICA")
        unrelated = rx.Variable(2.0)
    computing, done = threading.Event(), threading.Event()
    applied_to = Write.applied_to

    def slow(self, old, operand):
        computing.set()
        assert done.wait(60), "reading waited for a write that is being computed"
        return applied_to(self, old, operand)

    def read():
        assert computing.wait(60)
        assert (float(unrelated), float(written)) == (2.0, 1.0)
        done.set()

    monkeypatch.setattr(Write, "applied_to", slow)
    in_threads(lambda: written.assign_add(1.0), read)
    assert float(written) == 2.0


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_write_during_another_is_not_lost(kind, monkeypatch):
    with STRATEGIES[kind]().scope():
        v = rx.Variable(1.0)
    applied_to, others = Write.applied_to, [lambda: v.assign_add(10.0)]

    def slow(self, old, operand):
        new = applied_to(self, old, operand)
        if others:
            in_threads(others.pop())
        return new

    monkeypatch.setattr(Write, "applied_to", slow)
    v.assign_add(1.0)
    assert float(v) == 12.0


def test_a_step_that_is_compiled_with_checks_blocks_no_reader(monkeypatch):
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        v = rx.Variable(1.0, aggregation=SUM)
    compile_now, seen = jax.stages.Lowered.compile, []

    def compiling(*args, **kwargs):
        in_threads(lambda: seen.append(float(v)))
        return compile_now(*args, **kwargs)

    @rx.function
    def step():
        strategy.run(lambda: v.assign_add(1.0))

    step()
    monkeypatch.setattr(jax.stages.Lowered, "compile", compiling)
    with jax.debug_nans(True):
        step()
    assert seen == [3.0]
    assert float(v) == 5.0


def test_first_calls_of_several_threads():
    for _ in range(5):
        strategy = STRATEGIES["mirrored"]()
        with strategy.scope():
            total = rx.Variable(jnp.zeros(3), aggregation=SUM)
        made = []

        @rx.function
        def step(strategy=strategy, total=total, made=made):
            if not made:
                made.append(rx.Variable(0.0))
            time.sleep(0.01)
            strategy.run(lambda: total.assign_add(jnp.full(3, 0.5)))

        in_threads(*[step] * 6)
        np.testing.assert_array_equal(total.numpy(), [6.0] * 3)
        assert len(made) == 1
        assert step.num_programs == 1


def test_a_strategy_is_freed_although_the_function_lives():
    @rx.function
    def replica_fn(x):
        return x + 1

    references = []
    for _ in range(3):
        strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        strategy.run(replica_fn, args=(jnp.ones(3),))
        references.append(weakref.ref(strategy))
        del strategy
    gc.collect()
    assert not any(reference() for reference in references)


def test_many_variables_of_megabytes_in_threads():
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        variables = [rx.Variable(jnp.zeros((256, 1024)), aggregation=SUM) for _ in range(60)]

    @rx.function
    def step(x):
        strategy.run(lambda x: [v.assign_add(x) for v in variables] and None, args=(x,))

    def train():
        for _ in range(5):
            step(jnp.float32(0.5))

    def look():
        for _ in range(3):
            with strategy.store.exclusive():
                values = {float(v.value[i, i]) for v in variables for i in (0, 255)}
            assert len(values) == 1, "a half-finished step was seen"

    in_threads(train, train, look, look)
    assert float(variables[-1].value[0, 0]) == 10.0


def test_jax_arrays_read_before_a_step_stay_valid_in_another_thread():
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        v = rx.Variable(jnp.zeros(1000), aggregation=SUM)
    step = rx.function(lambda: strategy.run(lambda: v.assign_add(jnp.ones(1000))))
    step()

    def train():
        for _ in range(100):
            step()

    def keep():
        kept = [v.value for _ in range(100)]
        for value in jax.block_until_ready(kept):
            assert len(set(np.asarray(value).tolist())) == 1

    in_threads(train, keep, keep)
