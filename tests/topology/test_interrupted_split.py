"""An interrupt while JAX makes the shards of an array leaves the array usable."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def _interrupt_after_the_first_shard(array):
    """JAX stores a list of shards before it is complete, so later it returns only the first one."""
    seen = []

    def interrupt(frame, event, _):
        if event == "call" and frame.f_code.co_name == "make_single_device_sharding":
            seen.append(frame)
            if len(seen) == 2:
                raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            _ = array.addressable_shards
    finally:
        sys.setprofile(None)


def test_parts_of_a_sharded_array_whose_shards_were_interrupted():
    mesh = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]).mesh
    array = jax.jit(lambda: jnp.arange(6.0), out_shardings=mesh.sharded)()
    _interrupt_after_the_first_shard(array)
    assert [part.tolist() for part in mesh.split(array, scalar=False)] == [[0, 1], [2, 3], [4, 5]]


def test_copies_of_a_replicated_array_whose_shards_were_interrupted():
    mesh = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]).mesh
    array = jax.jit(lambda: jnp.arange(3.0), out_shardings=mesh.replicated)()
    _interrupt_after_the_first_shard(array)
    assert [part.tolist() for part in mesh.split_replicated(array)] == [[0, 1, 2]] * 3


@pytest.mark.parametrize(
    "read",
    [lambda v, _: v.numpy(), lambda v, _: np.asarray(v), lambda v, folder: saved(v, folder)],
    ids=["numpy", "asarray", "checkpoint"],
)
def test_a_sharded_variable_whose_shards_were_interrupted(read, tmp_path):
    strategy = rx.ShardedStrategy(["CPU:0", "CPU:1", "CPU:2"], shard="all", min_shard_bytes=1)
    with strategy.scope():
        v = rx.Variable(jnp.zeros((6, 2)), aggregation=rx.VariableAggregation.MEAN)

    @rx.function
    def step():
        strategy.run(lambda: v.assign_add(jnp.arange(12.0).reshape(6, 2), read_value=False))

    step()
    _interrupt_after_the_first_shard(v._stored_array())
    np.testing.assert_array_equal(read(v, tmp_path), np.arange(12.0).reshape(6, 2))


def saved(v, folder):
    """The value that a checkpoint of `v` has."""
    path = rx.Checkpoint(v=v).save(folder)
    other = rx.Variable(jnp.zeros((6, 2)))
    rx.Checkpoint(v=other).restore(path).assert_consumed()
    return other.numpy()
