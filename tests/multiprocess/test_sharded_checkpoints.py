"""Checkpoints of variables that are divided among processes: each writes and reads its own part."""

import os
import pathlib

import jax
import numpy as np
from tests.environment import xla_flags

import replicax as rx
from replicax import testing
from replicax.checkpoint import _saved
from replicax.errors import CheckpointError

ENVIRONMENT = {"XLA_FLAGS": xla_flags()}
WIDE = np.arange(5 * 20_001, dtype=np.float32).reshape(5, 20_001)  # the second part is padded


def values(step):
    return {"even": np.full((4, 6), step, np.float32), "wide": WIDE + step, "scalar": np.float32(step)}


def make(strategy, step):
    """Variables on all workers; those with axes are divided."""
    with strategy.scope():
        return {name: rx.Variable(value, name=name) for name, value in values(step).items()}


def own_parts(variables):
    """The parts of the values that this process holds, without padding."""
    found = {}
    for name, v in variables.items():
        shard = v._stored_array().addressable_shards[0]
        found[name] = np.asarray(shard.data)[tuple(slice(0, n) for n in _left(shard.index, v.shape))]
    return found


def _left(index, shape):
    ranges = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return [stop - start for start, stop, _ in ranges]


def expected_parts(variables, step):
    parts = {}
    for name, v in variables.items():
        index = v._stored_array().addressable_shards[0].index
        parts[name] = values(step)[name][index]
    return parts


def check(variables, step):
    for (name, part), wanted in zip(
        own_parts(variables).items(), expected_parts(variables, step).values(), strict=True
    ):
        np.testing.assert_array_equal(part, wanted, err_msg=name)


def train(folder):
    """Save three times and restore; returns what was read of the second checkpoint."""
    strategy = rx.MultiWorkerMirroredStrategy(shard="all", min_shard_bytes=8)
    variables = make(strategy, 0)
    assert [isinstance(v, rx.ShardedVariable) for v in variables.values()] == [True, True, False]
    checkpoint = rx.Checkpoint(model=variables)
    with rx.CheckpointManager(checkpoint, folder, prefix="m-") as manager:
        for step in range(2):
            for v, new in zip(variables.values(), make(strategy, step).values(), strict=True):
                v._replace_array(new._stored_array())
            manager.save(step)
    assert manager.checkpoints == [0, 1]
    checkpoint.save(os.path.join(folder, "waited"))
    read = []
    read_arrays = _saved.read_arrays

    def reading(path, item, names):
        read.extend(names)
        return read_arrays(path, item, names)

    _saved.read_arrays = reading
    try:
        for step in (0, 1):
            read.clear()
            manager.restore(step).assert_consumed()
            check(variables, step)
    finally:
        _saved.read_arrays = read_arrays
    return fall_back(folder, variables, manager), sorted(set(read))


def fall_back(folder, variables, manager):
    """Damage the second process's part of the newest checkpoint: both restore the older one."""
    testing.point("undamaged")
    if jax.process_index() == 1:
        row = np.ascontiguousarray(own_parts(variables)["wide"][0][:100]).tobytes()
        found = [f for f in pathlib.Path(folder, "m-1").rglob("*") if f.is_file() and row in f.read_bytes()]
        assert len(found) == 1
        found[0].write_bytes(found[0].read_bytes().replace(row, bytes(400)))
    try:
        manager.restore(1)
    except CheckpointError as error:
        message = str(error)
    check(variables, 1)
    assert manager.restore_or_initialize() == 0
    check(variables, 0)
    return message


def test_each_process_writes_and_reads_its_own_part(tmp_path):
    with testing.start(train, (str(tmp_path),), environment=ENVIRONMENT) as workers:
        outcomes = workers.wait()
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes
    (first, read_first), (second, read_second) = (outcome.value for outcome in outcomes)
    assert read_first == ["model/even//0", "model/scalar", "model/wide//0"]
    assert read_second == ["model/even//1", "model/scalar", "model/wide//1"]
    assert "Process 1:" in first
    assert "the array model/wide//1 is damaged" in first
    assert "the array model/wide//1 is damaged" in second
    for strategy in (rx.get_strategy(), rx.ShardedStrategy(["CPU:0", "CPU:1", "CPU:2"], min_shard_bytes=1)):
        with strategy.scope():
            alone = {name: rx.Variable(np.zeros_like(value)) for name, value in values(0).items()}
        rx.Checkpoint(model=alone).restore(tmp_path / "waited").assert_consumed()
        for name, value in values(1).items():
            np.testing.assert_array_equal(alone[name].numpy(), value)
    assert {p.name for p in tmp_path.iterdir()} == {"m-0", "m-1", "waited"}
