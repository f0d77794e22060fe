"""Ctrl-C at any moment of a save: what is saved afterwards is complete, and so is every checkpoint."""

import random
import signal
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

NUM_INTERRUPTS = 20


class Interrupt(BaseException):
    """What the signal handler raises."""


def _raise(*_):
    raise Interrupt


@pytest.fixture
def interrupts():
    """Calls a function, and interrupts it after so many seconds; whether it was interrupted."""
    before = signal.signal(signal.SIGALRM, _raise)
    lost = []

    def note_lost(unraisable):
        """Python ignores exceptions in the callbacks of weak references, wherever they are collected."""
        if unraisable.exc_type is Interrupt:
            lost.append(unraisable.object)
        else:
            sys.__unraisablehook__(unraisable)

    def call(function, seconds):
        lost.clear()
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            function()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            return True
        return bool(lost)

    hook, sys.unraisablehook = sys.unraisablehook, note_lost
    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    sys.unraisablehook = hook


@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_interrupted_save_leaves_a_manager_that_saves(asynchronous, interrupts, tmp_path):
    chance = random.Random(0)
    w = rx.Variable(jnp.zeros(100_000))
    step = rx.function(lambda: w.assign_add(jnp.ones(100_000), read_value=False))
    manager = rx.CheckpointManager(
        rx.Checkpoint(w=w), tmp_path, max_to_keep=None, asynchronous=asynchronous
    )
    num_interrupted = 0

    def train():
        for _ in range(50):
            step()
            manager.save()

    for _ in range(NUM_INTERRUPTS):
        num_interrupted += interrupts(train, chance.random() * 0.1 + 1e-4)
        manager.save()  # as in an exception handler
        manager.wait()
    manager.close()
    assert num_interrupted == NUM_INTERRUPTS
    assert len(manager.checkpoints) >= NUM_INTERRUPTS
    newest = float(w.read_value()[0])
    found = []
    for number in manager.checkpoints:
        manager.restore(number).assert_consumed()
        (value,) = set(np.asarray(w.read_value()).tolist())
        found.append(value)
    assert found == sorted(found)
    assert found[-1] == newest
    assert all(path.name.isdecimal() for path in tmp_path.iterdir())


def test_an_interrupted_save_without_a_manager_leaves_nothing(interrupts, tmp_path):
    chance = random.Random(1)
    w = rx.Variable(jnp.zeros(100_000))
    checkpoint = rx.Checkpoint(w=w)
    seconds, num_interrupted = 0.0, 0
    for i in range(100):  # a save may be much faster than the one before, which sets the moment
        if num_interrupted > 10:
            break
        w.assign(jnp.full(100_000, float(i)), read_value=False)
        moment = chance.random() * 0.8 * seconds + 1e-4
        num_interrupted += interrupts(lambda: checkpoint.save(tmp_path), moment)
        start = time.perf_counter()
        path = checkpoint.save(tmp_path)
        seconds = time.perf_counter() - start
        w.assign(jnp.zeros(100_000), read_value=False)
        checkpoint.restore(path).assert_consumed()
        assert set(np.asarray(w.read_value()).tolist()) == {float(i)}
    assert num_interrupted > 10
    assert all(path.name.isdecimal() for path in tmp_path.iterdir())
