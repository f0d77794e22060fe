"""JAX's debugging settings: jax_debug_nans, jax_debug_infs and jax.disable_jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

SUM = rx.VariableAggregation.SUM
DEVICES = {1: ["CPU:0"], 2: ["CPU:0", "CPU:1"]}


def make(num_replicas):
    strategy = rx.MirroredStrategy(DEVICES[num_replicas])
    with strategy.scope():
        v, w = rx.Variable(jnp.ones(3), aggregation=SUM), rx.Variable(jnp.ones(3), aggregation=SUM)

    @rx.function
    def step(x):
        def replica_fn(x):
            v.assign(jnp.log(x))
            w.assign_add(jnp.ones(3))
            return jnp.sum(x)

        return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)

    return strategy, v, w, step


@pytest.mark.parametrize("num_replicas", DEVICES)
@pytest.mark.parametrize("compiled_before", [True, False])
@pytest.mark.parametrize(("setting", "bad"), [("debug_nans", -1.0), ("debug_infs", 0.0)])
def test_a_value_that_is_not_a_number_raises_and_changes_nothing(
    num_replicas, compiled_before, setting, bad
):
    _, v, w, step = make(num_replicas)
    if compiled_before:
        step(jnp.ones(3))
    before = v.numpy(), w.numpy()
    with getattr(jax, setting)(True):
        with pytest.raises(FloatingPointError, match=r"variable 'Variable:0'.*eagerly"):
            step(jnp.full(3, bad))
        np.testing.assert_array_equal((v.numpy(), w.numpy()), before)
        step(jnp.ones(3))
    np.testing.assert_array_equal(v.numpy(), np.zeros(3))
    step(jnp.ones(3))
    np.testing.assert_array_equal(w.numpy(), before[1] + 2 * num_replicas)


@pytest.mark.parametrize("num_replicas", DEVICES)
def test_disable_jit_runs_the_step_eagerly(num_replicas):
    _, _, w, step = make(num_replicas)
    seen = []
    noisy = rx.function(lambda x: (seen.append(float(x[0])), step(x))[1])
    with jax.disable_jit():
        assert float(noisy(jnp.ones(3))) == 3.0 * num_replicas
    assert seen == [1.0]
    np.testing.assert_array_equal(w.numpy(), np.full(3, 1.0 + num_replicas))
    assert float(step(jnp.ones(3))) == 3.0 * num_replicas


def test_checked_steps_take_arrays_from_anywhere():
    strategy = rx.MirroredStrategy(DEVICES[2])
    with strategy.scope():
        v = rx.Variable(jnp.zeros(4), aggregation=SUM)
    step = rx.function(lambda x: strategy.run(v.assign_add, args=(x,)))
    drawn = rx.function(lambda key: jax.random.normal(key, (4,)) + v.value)
    one, key = jnp.ones(4), jax.random.key(0)
    elsewhere = [jax.devices("cpu")[1], strategy.mesh.replicated, strategy.mesh.sharded]
    with jax.debug_nans(True):
        for x in [one, np.ones(4, np.float32), *(jax.device_put(one, place) for place in elsewhere)] * 2:
            step(x)
        for _ in range(2):
            drawn(key), drawn(strategy.mesh.replicate(key))
    np.testing.assert_array_equal(v.value, [20.0] * 4)
