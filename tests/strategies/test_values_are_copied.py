"""`distribute_values_from_function` copies what the caller could change afterwards."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("size", [3, 4096])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, "U4"])
def test_changing_an_array_afterwards_does_not_change_the_value(count, size, dtype):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    source = np.zeros(size, dtype)
    value = strategy.distribute_values_from_function(lambda ctx: {"x": (source, 1)})
    before = [np.array(part["x"][0]) for part in strategy.local_results(value)]
    source[...] = 7
    for part, wanted in zip(strategy.local_results(value), before, strict=True):
        np.testing.assert_array_equal(np.asarray(part["x"][0]), wanted)


def test_replicas_that_share_a_buffer_get_their_own_values():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
    buffer = np.zeros(64, np.float32)

    def value_fn(context):
        buffer[...] = context.replica_id_in_sync_group
        return buffer

    value = strategy.distribute_values_from_function(value_fn)
    assert [float(x[0]) for x in strategy.local_results(value)] == [0, 1, 2]
    assert strategy.reduce("SUM", strategy.run(jnp.sum, args=(value,)), axis=None) == 3 * 64
