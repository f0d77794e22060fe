"""Sharded state on several workers: the numbers of one device, with a part of the state on each replica."""

import numpy as np
import optax
import pytest
from tests.environment import xla_flags
from tests.multiprocess.training_cases import EPS, assert_like_one_device

import replicax as rx
from replicax import testing


def eager(fn):
    return fn


def local_shapes(variable):
    array = variable._store.arrays[variable._place]
    return {shard.data.shape for shard in array.addressable_shards}


def check_training(shard, mode):
    """Training with axes that do and do not divide evenly, optimizer state included."""
    strategy = rx.MultiWorkerMirroredStrategy(shard=shard, min_shard_bytes=64)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01, eps=EPS))
    assert_like_one_device(strategy, mode, optimizer, hidden=33, epochs=1)


def check_variables():
    """Reading and writing a variable whose rows are divided among all replicas, and padded."""
    strategy = rx.MultiWorkerMirroredStrategy(shard="all", min_shard_bytes=1)
    count = strategy.num_replicas_in_sync
    value = np.arange(15, dtype=np.float32).reshape(5, 3)
    with strategy.scope():
        v = rx.Variable(value, aggregation="SUM")
    assert local_shapes(v) == {(-(-5 // count), 3)}
    strategy.run(lambda: v.assign_add(np.ones((5, 3), np.float32)))
    rx.function(lambda: strategy.run(lambda: v.assign_add(np.ones((5, 3), np.float32))))()
    v.assign_sub(np.full((5, 3), 2.0 * count, np.float32))
    np.testing.assert_array_equal(v.numpy(), value)
    assert local_shapes(v) == {(-(-5 // count), 3)}
    total = strategy.reduce("SUM", strategy.run(lambda: v.read_value().sum()), axis=None)
    assert float(total) == count * value.sum()


def check_partitions():
    """Two devices for each replica."""
    strategy = rx.MultiWorkerMirroredStrategy(
        shard="all", min_shard_bytes=1, logical_devices=2, partition_rules={"^w": [1, 2]}
    )
    assert strategy.num_replicas_in_sync == 2
    value = np.arange(24, dtype=np.float32).reshape(4, 6)
    with strategy.scope():
        w = rx.Variable(value, name="w", aggregation="MEAN")
    assert local_shapes(w) == {(2, 3)}

    @rx.function
    def step():
        return strategy.reduce("SUM", strategy.run(lambda: (w.assign_add(value) * 1.0).sum()), axis=None)

    assert float(step()) == 2 * 2 * value.sum()
    np.testing.assert_array_equal(w.numpy(), 2 * value)


def on_workers(everything, partitions):
    check_variables()
    check_training("all", rx.function)
    if partitions:
        check_partitions()
    if everything:
        check_training("optimizer", rx.function)
        check_training("all", eager)
        check_training("optimizer", eager)


@pytest.mark.parametrize(
    ("per_worker", "everything"),
    [
        pytest.param(2, False, id="2x2"),
        pytest.param(1, True, id="2x1, all", marks=pytest.mark.long),
        pytest.param(2, True, id="2x2, all", marks=pytest.mark.long),
    ],
)
def test_sharded_state_gives_the_numbers_of_one_device(per_worker, everything):
    testing.run(
        on_workers,
        (everything, per_worker == 2),
        num_workers=2,
        devices_per_worker=per_worker,
        environment={"XLA_FLAGS": xla_flags()},
        timeout_seconds=280,
    )
