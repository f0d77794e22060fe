"""Checkpoints of several workers: all save together, one writes, and others may read meanwhile."""

import os
import time

import jax.numpy as jnp
import numpy as np
import pytest
from tests.environment import xla_flags

import replicax as rx
from replicax import testing
from replicax.errors import CollectiveMismatchError, WorkerLeftError

NUM_SAVES = 12
ENVIRONMENT = {"XLA_FLAGS": xla_flags()}


def make():
    """A strategy, the variables of a checkpoint, and a step that counts in all of them."""
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        many = [rx.Variable(jnp.zeros(1000)) for _ in range(3)]
        total = rx.Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    @rx.function
    def step():
        for v in many:
            v.assign_add(jnp.ones(1000))
        strategy.run(lambda: total.assign_add(1.0))
        return strategy.reduce("SUM", strategy.run(lambda: jnp.float32(1)), axis=None)

    return rx.Checkpoint(many=many, total=total), step


def save_often(folder):
    checkpoint, step = make()
    manager = rx.CheckpointManager(checkpoint, folder, max_to_keep=3)
    for _ in range(NUM_SAVES):
        step()
        manager.save()
        testing.point("saved")
    manager.wait()
    return manager.checkpoints


def test_an_evaluator_reads_while_workers_write(tmp_path):
    values = [rx.Variable(jnp.zeros(1000)) for _ in range(3)]
    evaluator = rx.CheckpointManager(rx.Checkpoint(many=values), tmp_path)
    seen = []
    with testing.start(save_often, (str(tmp_path),), environment=ENVIRONMENT) as workers:
        workers.wait_for("saved", rank=0)
        while workers.is_running(0) or not seen:
            number = evaluator.restore_or_initialize()
            if number is not None:
                numbers = {float(x) for v in values for x in np.unique(v.numpy())}
                assert numbers == {number + 1}, "a checkpoint is of one moment"
                seen.append(number)
        outcomes = workers.wait()
    assert [outcome.status for outcome in outcomes] == [0, 0]
    assert [outcome.value for outcome in outcomes] == [[NUM_SAVES - 3, NUM_SAVES - 2, NUM_SAVES - 1]] * 2
    assert seen == sorted(seen)
    assert {name for name in os.listdir(tmp_path) if not name.startswith(".")} == {"9", "10", "11"}


def save_on_one(rank, folder, goes_on):
    """One rank saves; the others go on training, or end."""
    checkpoint, step = make()
    for _ in range(3):
        step()  # the others' next step is not compiled, nor compared beforehand
    if testing.rank() == rank:
        checkpoint.save(folder)
    elif goes_on:
        while True:
            float(step())


@pytest.mark.parametrize(
    ("rank", "goes_on", "error"), [(0, True, CollectiveMismatchError), (1, False, WorkerLeftError)]
)
def test_saving_on_one_worker_is_an_error_soon(rank, goes_on, error, tmp_path):
    workers = testing.start(save_on_one, (rank, str(tmp_path), goes_on), environment=ENVIRONMENT)
    with workers:
        began = time.monotonic()
        outcomes = workers.wait(timeout_seconds=150)
    assert time.monotonic() - began < 100  # a loaded machine is slow to start; waiting would take minutes
    assert isinstance(outcomes[rank].error, error), outcomes[rank]
    assert ("saving a checkpoint" in str(outcomes[rank].error)) == goes_on
    assert os.listdir(tmp_path) == []
