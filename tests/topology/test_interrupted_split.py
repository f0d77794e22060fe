"""An interrupt while JAX makes the shards of an array leaves the array usable."""

import sys

import jax
import jax.numpy as jnp
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
