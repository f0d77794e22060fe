"""`CheckpointManager(best_fn=...)` keeps the best checkpoints, and the newest one."""

import pytest

import replicax as rx
from replicax.errors import CheckpointError


def manager(folder, max_to_keep=2, **options):
    return rx.CheckpointManager(rx.Checkpoint(w=rx.Variable(1.0)), folder, max_to_keep, **options)


def save_all(manager, values):
    for step, value in enumerate(values):
        manager.save(step, metrics=None if value is None else {"x": value})
    manager.wait()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_best_and_the_newest_stay(asynchronous, tmp_path):
    largest = manager(tmp_path, best_fn=lambda m: m["x"], asynchronous=asynchronous)
    save_all(largest, [3.0, 9.0, 1.0, 5.0, float("nan"), None, 2.0])
    assert largest.checkpoints == [1, 3, 6]
    assert largest.best_checkpoint == str(tmp_path / "1")
    assert largest.latest_checkpoint == str(tmp_path / "6")
    assert largest.restore_or_initialize() == 6


def test_the_smallest_and_of_equal_ones_the_newest(tmp_path):
    smallest = manager(tmp_path, best_fn=lambda m: m["x"], best_mode="min")
    assert smallest.best_checkpoint is None
    save_all(smallest, [3.0, 1.0, 1.0, 1.0])
    assert smallest.checkpoints == [2, 3]
    assert smallest.best_checkpoint == str(tmp_path / "3")


def test_mistakes(tmp_path):
    with pytest.raises(CheckpointError, match="'max' or 'min'"):
        manager(tmp_path, best_fn=len, best_mode="least")
    with pytest.raises(CheckpointError, match="pass best_fn"):
        _ = manager(tmp_path).best_checkpoint
    best = manager(tmp_path, best_fn=lambda m: m["x"])
    with pytest.raises(CheckpointError, match="best_fn failed with KeyError: 'x'"):
        best.save(0, metrics={"y": 1.0})
    with pytest.raises(CheckpointError, match="a dict of numbers"):
        best.save(0, metrics={"x": "high"})
    assert best.checkpoints == []
