"""A new variable has memory of its own, and making one of a new shape compiles nothing."""

import copy
import itertools
import logging

import jax
import numpy as np
import pytest

import replicax as rx

STRATEGIES = {
    "default": rx.get_strategy,
    "one device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "sharded": lambda: rx.ShardedStrategy(["CPU:0", "CPU:1"], shard="all", min_shard_bytes=1),
}
SHAPES = ((rows, 2) for rows in itertools.count(2000, 6))


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


def array(kind, shape, dtype="float32"):
    numbers = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return jax.device_put(numbers) if kind == "jax" else numbers


# Not for sharded variables: JAX compiles the slices.
@pytest.mark.parametrize("strategy", ["default", "one device", "mirrored", "central"], indirect=True)
@pytest.mark.parametrize("kind", ["jax", "numpy"])
def test_nothing_is_compiled(strategy, kind, caplog):
    value = array(kind, next(SHAPES))
    with jax.log_compiles(), caplog.at_level(logging.WARNING), strategy.scope():
        v = rx.Variable(value)
        other = copy.deepcopy(v)
        v.assign(value, read_value=False)
    assert "Compiling" not in caplog.text
    np.testing.assert_array_equal(v.numpy(), value)
    np.testing.assert_array_equal(other.numpy(), value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "uint32", "bool", "complex64"])
@pytest.mark.parametrize("kind", ["jax", "numpy"])
def test_it_has_memory_of_its_own(strategy, kind, dtype):
    value = array(kind, (600, 2), dtype)
    before = np.array(value)
    with strategy.scope():
        v = rx.Variable(value, aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA)
    w = copy.deepcopy(v)

    @rx.function
    def step():
        strategy.run(
            lambda: v.assign(v.value ^ v.value if v.dtype == bool else v.value * 0, read_value=False)
        )

    step()  # donates the variable's array
    np.testing.assert_array_equal(np.asarray(value), before)
    np.testing.assert_array_equal(w.numpy(), before)
    assert not v.numpy().any() and w.dtype == value.dtype
    if kind == "numpy":
        w.assign(value)
        value[:] = 0
        np.testing.assert_array_equal(w.numpy(), before)


def test_sixty_four_bits_become_thirty_two():
    assert rx.Variable(np.ones(3)).dtype == np.float32
    assert rx.Variable(np.arange(3)).dtype == np.int32
    with pytest.warns(UserWarning, match="float64"):
        assert rx.Variable([1.0, 2.0], dtype="float64").dtype == np.float32
