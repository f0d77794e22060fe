"""Moving averages: those of NumPy, wherever variables and averages are placed."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax import errors

START = np.arange(10.0, dtype=np.float32).reshape(5, 2)


def _expected(values, decay, warmup=False):
    average = values[0]
    for count, value in enumerate(values[1:]):
        now = min(decay, (1 + count) / (10 + count)) if warmup else decay
        average = now * average + (1 - now) * value
    return average


def _make(strategy, **options):
    with strategy.scope():
        params = rx.create_variables({"w": START, "b": np.float32(1.0)})
        return params, rx.ExponentialMovingAverage(params, **options)


@pytest.mark.parametrize("strategy", ["default", "mirrored_2", "central"], indirect=True)
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_averages_follow_on_every_strategy(strategy, mode, where):
    params, ema = _make(strategy, decay=0.9, warmup=True)
    optimizer = rx.Optimizer(optax.sgd(1.0), reduce="MEAN")

    def replica_step():
        optimizer.apply_gradients({"w": jnp.ones((5, 2)), "b": jnp.float32(2.0)}, params)
        if where == "inside":
            ema.update()

    @mode
    def step():
        strategy.run(replica_step)
        if where == "outside":
            ema.update()

    for _ in range(3):
        step()
    found = rx.read_values(ema.averages)
    np.testing.assert_allclose(found["w"], _expected([START - i for i in range(4)], 0.9, True), rtol=1e-6)
    np.testing.assert_allclose(found["b"], _expected([1.0 - 2 * i for i in range(4)], 0.9, True), rtol=1e-6)
    assert int(ema.num_updates) == 3


@pytest.mark.parametrize("shard", ["optimizer", "all"])
def test_averages_are_sharded_like_the_state_of_an_optimizer(shard):
    strategy = rx.ShardedStrategy(["CPU:0", "CPU:1"], shard=shard, min_shard_bytes=1)
    params, ema = _make(strategy, decay=0.5)
    assert ema.averages["w"].layout.is_split
    assert params["w"].layout.is_split == (shard == "all")
    step = rx.function(lambda: (params["w"].assign(params["w"] + 2.0), ema.update()))
    step()
    np.testing.assert_allclose(ema.averages["w"].numpy(), START + 1)
    with ema.applied():
        np.testing.assert_allclose(params["w"].numpy(), START + 1)
    np.testing.assert_allclose(params["w"].numpy(), START + 2)
    np.testing.assert_allclose(ema.averages["w"].numpy(), START + 1)


def test_a_block_applies_the_averages_and_an_error_ends_it():
    params, ema = _make(rx.MirroredStrategy(["CPU:0", "CPU:1"]), decay=0.5)
    params["b"].assign(3.0)
    ema.update()
    with pytest.raises(KeyError), ema.applied():
        assert float(params["b"]) == 2.0
        with pytest.raises(errors.ContextError, match="another such block"), ema.applied():
            pass
        with pytest.raises(errors.ContextError, match="Update after the block"):
            ema.update()
        raise KeyError
    assert float(params["b"]) == 3.0
    assert float(ema.averages["b"]) == 2.0


def test_averages_are_saved_and_restored(tmp_path):
    params, ema = _make(rx.MirroredStrategy(["CPU:0", "CPU:1"]), decay=0.5)
    params["b"].assign(3.0)
    ema.update()
    path = rx.Checkpoint(params=params, ema=ema).save(tmp_path)
    params, ema = _make(rx.OneDeviceStrategy("CPU:2"), decay=0.5)
    rx.Checkpoint(params=params, ema=ema).restore(path).assert_consumed()
    assert (float(ema.averages["b"]), int(ema.num_updates)) == (2.0, 1)


def test_averages_of_small_floats_are_float32():
    w = rx.Variable(jnp.ones(2, jnp.bfloat16))
    ema = rx.ExponentialMovingAverage([w], decay=0.999)
    w.assign(2.0)
    ema.update()
    np.testing.assert_allclose(ema.averages[0].numpy(), 1.001, rtol=1e-6)
    with pytest.raises(errors.VariableError, match="would be rounded"), ema.applied():
        pass


def test_what_can_not_be_averaged_is_refused():
    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        count, part = rx.Variable(1), rx.Variable(1.0, synchronization="ON_READ", aggregation="SUM")
        w = rx.Variable(1.0)
    for variables, message in [
        ([count], "dtype int32"),
        ([part], "ON_READ"),
        ([jnp.ones(2)], "takes variables"),
        ({}, "Got none"),
        ([w, w], "more than once"),
    ]:
        with pytest.raises(errors.VariableError, match=message):
            rx.ExponentialMovingAverage(variables)
    with pytest.raises(ValueError, match=r"decay=1\.5"):
        rx.ExponentialMovingAverage([w], decay=1.5)


def test_many_variables_are_updated_without_communication():
    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope() as strategy:
        params = rx.create_variables({f"w{i}": np.full(3, i, np.float32) for i in range(40)})
        ema = rx.ExponentialMovingAverage(params, decay=0.5)
    step = rx.function(lambda: strategy.run(ema.update))
    step()
    assert "all-reduce" not in step.lower().compile().as_text()
    assert float(ema.averages["w7"].read_value()[0]) == 7.0
