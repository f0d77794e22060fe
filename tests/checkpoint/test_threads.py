"""Saving and restoring while another thread trains: a checkpoint is of one moment."""

import contextlib
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from tests.checkpoint.helpers import MEAN, ON_READ, SUM, mirrored

import replicax as rx

NUM_VARIABLES = 200
NUM_SAVES = 4


@contextlib.contextmanager
def training(step):
    """Another thread that calls `step` again and again."""
    ended, errors = threading.Event(), []

    def train():
        try:
            while not ended.is_set():
                step()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not errors


@pytest.mark.parametrize("strategy", [rx.get_strategy, lambda: mirrored(2)], ids=["default", "mirrored2"])
def test_a_checkpoint_saved_while_another_thread_trains_is_of_one_step(strategy, tmp_path):
    strategy = strategy()
    with strategy.scope():
        variables = [rx.Variable(jnp.zeros(4), aggregation=MEAN) for _ in range(NUM_VARIABLES - 1)]
        variables.append(rx.Variable(jnp.zeros(4), synchronization=ON_READ, aggregation=MEAN))

    @rx.function
    def step():
        strategy.run(lambda: [v.assign_add(jnp.ones(4)) for v in variables] and None)

    step()
    checkpoint = rx.Checkpoint(variables=variables)
    with training(step), rx.CheckpointManager(checkpoint, tmp_path, max_to_keep=None) as manager:
        for _ in range(NUM_SAVES):
            manager.save()
    found = []
    for number in manager.checkpoints:
        manager.restore(number).assert_consumed()
        found.append({float(x) for v in variables for x in np.asarray(v.read_value())})
    assert [len(numbers) for numbers in found] == [1] * NUM_SAVES, found
    assert len(set.union(*found)) > 1, "the other thread made no step"


def test_a_checkpoint_of_two_strategies_is_of_one_moment_of_each():
    strategies = [mirrored(2), mirrored(3)]
    variables = []
    for strategy in strategies:
        with strategy.scope():
            variables.append([rx.Variable(0.0, aggregation=SUM) for _ in range(50)])

    @rx.function
    def step():
        for group in variables:
            for v in group:
                v.assign_add(1.0)

    step()
    checkpoint = rx.Checkpoint(variables=variables)
    with training(step):
        for _ in range(8):
            arrays = checkpoint.content().arrays
            numbers = [{float(arrays[f"variables/{i}/{j}"]) for j in range(50)} for i in range(2)]
            assert [len(group) for group in numbers] == [1, 1], numbers


def test_a_restore_while_another_thread_trains_is_of_one_moment(tmp_path):
    variables = [rx.Variable(jnp.zeros(4)) for _ in range(NUM_VARIABLES)]
    path = rx.Checkpoint(variables=variables).save(tmp_path)

    @rx.function
    def step():
        for v in variables:
            v.assign_add(jnp.ones(4))

    step()
    checkpoint = rx.Checkpoint(variables=variables)
    with training(step):
        for _ in range(5):
            checkpoint.restore(path)
            numbers = {float(x) for array in checkpoint.content().arrays.values() for x in array}
            assert len(numbers) == 1, numbers
