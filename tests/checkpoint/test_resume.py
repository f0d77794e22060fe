"""Stopping and going on: bit for bit on the same topology, to 1e-6 on another.

The program is `killed_trainer.Trainer`: shuffled data that does not divide, dropout by example, Adam.
"""

import random
import subprocess
import sys

import numpy as np
import pytest
from tests.checkpoint.helpers import identical
from tests.checkpoint.killed_trainer import STRATEGIES, Trainer, bits
from tests.checkpoint.test_killed import PROGRAM, lines, losses, to_the_end

import replicax as rx

NUM_STEPS, INTERVAL = 24, 3
CHANCE = random.Random(0)


def states(trainer):
    return [v.read_value() for v in (*trainer.weights, *trainer.optimizer.variables)]


def run(trainer, num_steps):
    return [trainer.step() for _ in range(num_steps)]


def uninterrupted(strategy, compiled=True):
    trainer = Trainer(STRATEGIES[strategy](), compiled=compiled)
    found = run(trainer, NUM_STEPS)
    trainer.batches.close()
    return found, states(trainer)


@pytest.fixture(scope="module")
def whole_runs():
    """The losses and the final state of runs that were not stopped, by strategy; made when needed."""
    made = {}

    def get(strategy):
        if strategy not in made:
            made[strategy] = uninterrupted(strategy)
        return made[strategy]

    return get


def stopped(strategy, stop_at, directory, compiled=True):
    """Train, saving every few steps, and drop everything at a step."""
    trainer = Trainer(STRATEGIES[strategy](), compiled=compiled)
    with rx.CheckpointManager(trainer.checkpoint, directory, save_interval=INTERVAL) as manager:
        found = []
        for _ in range(stop_at):
            found.append(trainer.step())
            manager.save(trainer.num_steps)
    trainer.batches.close()
    return found


def resumed(strategy, directory, compiled=True):
    """Go on with new objects; the step it began at, the losses, the state at the end."""
    trainer = Trainer(STRATEGIES[strategy](), compiled=compiled)
    with rx.CheckpointManager(trainer.checkpoint, directory) as manager:
        begin = manager.restore_or_initialize() or 0
    assert trainer.num_steps == begin
    found = run(trainer, NUM_STEPS - begin)
    trainer.batches.close()
    rx.RestoreStatus(trainer.checkpoint._restored).assert_consumed()
    return begin, found, states(trainer)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_on_the_same_topology_the_losses_are_bit_for_bit_those_of_one_run(strategy, whole_runs, tmp_path):
    expected, state = whole_runs(strategy)
    stop_at = CHANCE.randint(INTERVAL, NUM_STEPS - 1)
    before = stopped(strategy, stop_at, tmp_path)
    begin, after, end = resumed(strategy, tmp_path)
    assert begin == stop_at - stop_at % INTERVAL
    assert list(map(bits, before[:begin] + after)) == list(map(bits, expected))
    for mine, other in zip(end, state, strict=True):
        identical(mine, other)


@pytest.mark.parametrize("stop_at", [INTERVAL, 4, 13, NUM_STEPS - 1])
def test_wherever_it_is_stopped(stop_at, whole_runs, tmp_path):
    """At the first checkpoint, at the end of an epoch (4 batches), in the middle of one, near the end."""
    expected, _ = whole_runs("mirrored2")
    stopped("mirrored2", stop_at, tmp_path)
    begin, after, _ = resumed("mirrored2", tmp_path)
    assert list(map(bits, after)) == list(map(bits, expected[begin:]))


def test_in_eager_mode_too(tmp_path):
    expected, _ = uninterrupted("mirrored2", compiled=False)
    stopped("mirrored2", 11, tmp_path, compiled=False)
    begin, after, _ = resumed("mirrored2", tmp_path, compiled=False)
    assert list(map(bits, after)) == list(map(bits, expected[begin:]))


def test_stopped_again_and_again(whole_runs, tmp_path):
    expected, _ = whole_runs("mirrored3")
    found = {}
    for stop_after in (5, 4, 7):
        trainer = Trainer(STRATEGIES["mirrored3"]())
        with rx.CheckpointManager(trainer.checkpoint, tmp_path, save_interval=INTERVAL) as manager:
            manager.restore_or_initialize()
            for _ in range(stop_after):
                loss = trainer.step()
                found[trainer.num_steps] = loss
                manager.save(trainer.num_steps)
        trainer.batches.close()
    _, after, _ = resumed("mirrored3", tmp_path)
    curve = [*(found[i + 1] for i in range(NUM_STEPS - len(after))), *after]
    assert list(map(bits, curve)) == list(map(bits, expected))


TOPOLOGIES = [
    *(("mirrored2", "mirrored3"), ("mirrored3", "mirrored2"), ("mirrored2", "one_device")),
    *(
        ("one_device", "mirrored3"),
        ("mirrored3", "central"),
        ("central", "default"),
        ("default", "mirrored2"),
    ),
]


@pytest.mark.parametrize(("first", "second"), TOPOLOGIES)
def test_on_another_topology_the_losses_are_those_of_one_run(first, second, whole_runs, tmp_path):
    expected, _ = whole_runs(first)
    stopped(first, 10, tmp_path)
    begin, after, _ = resumed(second, tmp_path)
    assert begin == 9
    np.testing.assert_allclose(after, expected[begin:], rtol=1e-6, atol=1e-6)


def test_in_another_process(tmp_path):
    """One program trains and ends, the same program goes on: the losses are those of a third."""
    for name in ("stopped", "whole"):
        (tmp_path / name).mkdir()
    stop_at = CHANCE.randint(8, 20)
    to_the_end(tmp_path / "stopped", "mirrored2", stop_at, 3, 0)
    to_the_end(tmp_path / "stopped", "mirrored2", NUM_STEPS, 3, 0)
    to_the_end(tmp_path / "whole", "mirrored2", NUM_STEPS, 100, 0)
    notes = lines(tmp_path / "stopped")
    assert [int(note[1]) for note in notes if note[0] == "start"] == [0, stop_at - stop_at % 3]
    assert losses(notes) == losses(lines(tmp_path / "whole"))


def test_the_program_says_what_is_wrong_with_its_checkpoint(tmp_path):
    rx.Checkpoint(other=rx.Variable(1.0)).save(tmp_path / "checkpoints")
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "mirrored2", "3", "3", "0"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 1
    assert "CheckpointMismatchError" in ended.stderr
    assert "there other" in ended.stderr
