"""Running out of memory: the error says what takes it and what would help, and nothing is lost."""

import jax
import jax.numpy as jnp
import pytest
from tests.planning.helpers import batch_for, make_step

import replicax as rx
from replicax.errors import OutOfMemoryError
from replicax.execution import _memory
from replicax.variables import Memory, Replicated, _out_of_memory, advise

DEVICES = ["CPU:0", "CPU:1"]
GIB = 1 << 30


def exhausted(*_):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.")


@pytest.fixture
def limit(monkeypatch):
    """`limit(n)` makes devices have `n` bytes."""

    def set_limit(count):
        for module in (_memory, _out_of_memory):
            monkeypatch.setattr(module, "memory_limit", lambda devices: count)

    return set_limit


def test_a_step_that_runs_out_of_memory(monkeypatch, limit):
    limit(None)
    strategy = rx.MirroredStrategy(DEVICES)
    step, params, optimizer = make_step(strategy)
    batch = batch_for(strategy)
    step(batch)
    before = params["hidden"].numpy()
    (program,) = step.programs
    with monkeypatch.context() as patch:
        patch.setattr(program, "_jitted", exhausted)
        run = program._make_run()
        with pytest.raises(OutOfMemoryError, match="ran out of memory") as caught:
            run(jax.tree.leaves(batch))
    text = str(caught.value)
    assert "RESOURCE_EXHAUSTED" in str(caught.value.__cause__)
    assert "  parameters                               1.0 MiB   largest" in text
    assert "largest: hidden:0 512.0 KiB, out:0 512.0 KiB, bias:0 12 B" in text
    assert "optimizer/0/mu/hidden:0" in text
    assert 'rx.ShardedStrategy(shard="all"): shards parameters and optimizer state over the 2' in text
    assert not hasattr(caught.value, "__notes__")
    assert (params["hidden"].numpy() == before).all()
    step(batch)
    assert int(optimizer.iterations) == 2


def test_a_step_that_can_not_fit_is_refused_before_it_runs(limit):
    strategy = rx.ShardedStrategy(DEVICES, shard="all")
    step, params, _ = make_step(strategy)
    batch = batch_for(strategy)
    before = params["hidden"].numpy()
    limit(1 << 20)
    with pytest.raises(MemoryError, match=r"needs \S+ MiB on each device, and JAX may use 1.0 MiB"):
        step(batch)
    assert (params["hidden"].numpy() == before).all()
    limit(None)
    assert float(step(batch)) > 0


def test_other_arrays_on_the_device_count(limit, monkeypatch):
    v = rx.Variable(jnp.zeros(1024))
    step = rx.function(lambda: v.assign_add(jnp.ones(1024)))
    limit(1 << 20)
    monkeypatch.setattr(_memory, "memory_in_use", lambda devices: 1 << 20)
    with pytest.raises(OutOfMemoryError, match=r"other arrays take (1020\.0 KiB|1\.0 MiB)"):
        step()
    monkeypatch.setattr(_memory, "memory_in_use", lambda devices: 8192)
    step()
    assert float(v[0]) == 1.0


def test_a_variable_that_does_not_fit(monkeypatch):
    strategy = rx.MirroredStrategy(DEVICES)
    with strategy.scope():
        kept = rx.Variable(jnp.zeros((256, 256)), name="kept")
        with monkeypatch.context() as patch:
            patch.setattr(Replicated, "place", exhausted)
            with pytest.raises(
                OutOfMemoryError, match=r"the variable 'w:0' \(4.0 MiB\) was being created"
            ) as caught:
                rx.Variable(jnp.zeros((1024, 1024)), name="w")
        assert "kept:0 256.0 KiB" in str(caught.value)
        rx.Variable(jnp.zeros(3))
    assert float(kept[0, 0]) == 0.0


def test_other_errors_stay_as_they_are(monkeypatch):
    def fail(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(Replicated, "place", fail)
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope(), pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        rx.Variable(1.0)


# Advice.


def advised(num_replicas=8, shard="mirrored", limit=20 * GIB, **memory):
    return advise(Memory(**{name: size * GIB for name, size in memory.items()}), limit, num_replicas, shard)


def test_advice_to_divide_no_more_than_is_needed():
    enough, *_ = advised(parameters=4, optimizer=8, temporaries=10)
    assert 'shard="optimizer"' in enough
    assert "7.0 GiB less" in enough
    more, *_ = advised(parameters=16, optimizer=32, temporaries=5)
    assert 'shard="all"' in more
    further, *_ = advised(parameters=10, optimizer=3, temporaries=12, shard="optimizer")
    assert 'shard="all"' in further
    assert not any(
        "rx.ShardedStrategy" in tip for tip in advised(parameters=1, temporaries=30, shard="all")
    )


def test_advice_for_one_device_does_not_mention_dividing():
    tips = advised(num_replicas=1, parameters=4, optimizer=8, temporaries=20)
    assert not any("rx.ShardedStrategy(" in tip for tip in tips)
    assert "microbatches=4" in tips[1]  # 16 GiB of activations, and 4 GiB left for them
    assert any("mu_dtype" in tip for tip in tips)


def test_no_number_of_microbatches_helps_if_the_state_alone_does_not_fit():
    tips = advised(num_replicas=1, parameters=10, optimizer=20, temporaries=20)
    assert any("mu_dtype" in tip for tip in tips)
    assert any("More devices" in tip for tip in tips)
