"""A folder with other processes' and the user's files in it: a manager deletes only what it may."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError

DAY = 24 * 3600


@pytest.fixture
def checkpoint():
    return rx.Checkpoint(w=rx.Variable(jnp.zeros(3), name="w"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def save(checkpoint, folder, *steps, **options):
    with rx.CheckpointManager(checkpoint, folder, **options) as manager:
        for step in steps:
            manager.save(step)
    return manager


class Trainer:
    """Another process, which stops in the middle of writing checkpoint 7 until it is told to go on."""

    def __init__(self, tmp_path):
        self.folder, self.go_on = tmp_path / "checkpoints", tmp_path / "go_on"
        program = f"""
            import pathlib, time
            import numpy as np
            import orbax.checkpoint as ocp
            import replicax as rx

            finish = ocp.JsonCheckpointHandler.finalize
            def finalize(self, *args, **kwargs):
                print("writing", flush=True)
                while not pathlib.Path({str(self.go_on)!r}).exists():
                    time.sleep(0.01)
                return finish(self, *args, **kwargs)
            ocp.JsonCheckpointHandler.finalize = finalize
            w = rx.Variable(np.ones(3, np.float32), name="w")
            with rx.CheckpointManager(rx.Checkpoint(w=w), {str(self.folder)!r}) as manager:
                manager.save(7)
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "writing\n"

    def finish(self):
        self.go_on.touch()
        assert self.process.wait(60) == 0

    def kill(self):
        self.process.send_signal(signal.SIGKILL)


@pytest.fixture
def trainer(tmp_path):
    trainer = Trainer(tmp_path)
    yield trainer
    trainer.process.kill()
    trainer.process.wait()
    trainer.process.stdout.close()


def test_a_manager_leaves_alone_what_another_process_is_writing(checkpoint, trainer):
    rx.CheckpointManager(checkpoint, trainer.folder)
    save(checkpoint, trainer.folder, 3, max_to_keep=1)
    trainer.finish()
    assert names(trainer.folder) == ["3", "7"]
    assert rx.CheckpointManager(checkpoint, trainer.folder).restore_or_initialize() == 7
    assert checkpoint.w.numpy().tolist() == [1, 1, 1]


def test_two_processes_that_write_one_checkpoint_leave_the_first(checkpoint, trainer):
    save(checkpoint, trainer.folder, 7)
    trainer.go_on.touch()
    assert trainer.process.wait(60) != 0
    assert names(trainer.folder) == ["7"]
    checkpoint.restore(trainer.folder).assert_consumed()
    assert checkpoint.w.numpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize("reaped", [True, False])
def test_the_next_save_removes_what_a_killed_process_left(checkpoint, trainer, reaped):
    trainer.kill()
    if reaped:
        trainer.process.wait()
    else:
        os.waitid(os.P_PID, trainer.process.pid, os.WEXITED | os.WNOWAIT)
    assert len(names(trainer.folder)) == 1
    manager = rx.CheckpointManager(checkpoint, trainer.folder)
    assert manager.checkpoints == []
    assert len(names(trainer.folder)) == 1  # a program that only reads removes nothing
    save(checkpoint, trainer.folder, 8)
    assert names(trainer.folder) == ["8"]


@pytest.mark.parametrize("change", ["host", "boot", "processes", "no note", "half a note"])
def test_what_a_writer_elsewhere_left_stays_for_a_day(checkpoint, trainer, change):
    """On another machine or in another container, where its process id means nothing here."""
    trainer.kill()
    trainer.process.wait()
    (left,) = trainer.folder.iterdir()
    note = left / "writer.json"
    if change == "no note":
        note.unlink()
    elif change == "half a note":
        note.write_text(note.read_text()[:20])
    else:
        note.write_text(json.dumps({**json.loads(note.read_text()), change: "another"}))
    save(checkpoint, trainer.folder, 8)
    assert names(trainer.folder) == [left.name, "8"]
    make_older(left, DAY - 600)
    save(checkpoint, trainer.folder, 9)
    assert left.exists()
    make_older(left, DAY + 600)
    save(checkpoint, trainer.folder, 10)
    assert names(trainer.folder) == ["10", "8", "9"]


def make_older(folder, seconds):
    then = time.time() - seconds
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))


def test_a_process_id_that_another_process_has_now_is_no_sign_of_life(checkpoint, trainer):
    trainer.kill()
    trainer.process.wait()
    (left,) = trainer.folder.iterdir()
    note = json.loads((left / "writer.json").read_text())
    (left / "writer.json").write_text(json.dumps({**note, "process": os.getpid()}))
    save(checkpoint, trainer.folder, 8)
    assert names(trainer.folder) == ["8"]


def test_a_checkpoint_that_was_deleted_by_half_is_removed(checkpoint, tmp_path, monkeypatch):
    rmtree = shutil.rmtree

    def interrupted(path, **options):
        if "deleted" in pathlib.Path(path).name:
            raise OSError("the machine goes down")
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    save(checkpoint, tmp_path, 1, 2, max_to_keep=1)
    monkeypatch.undo()
    assert len(names(tmp_path)) == 2
    manager = save(checkpoint, tmp_path, 3)
    assert names(tmp_path) == ["2", "3"]
    assert manager.checkpoints == [2, 3]


# The user's own.


def test_what_belongs_to_the_user_stays(checkpoint, tmp_path):
    for name in ("0", "007", "1", "2024", "3.orbax-checkpoint-tmp", ".deleted-4", "best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    (tmp_path / "5").write_text("mine")
    before = names(tmp_path)
    manager = save(checkpoint, tmp_path, 10, 11, max_to_keep=1)
    assert manager.checkpoints == [11]
    assert manager.latest_checkpoint == str(tmp_path / "11")
    assert names(tmp_path) == sorted([*before, "11"])
    assert rx.CheckpointManager(checkpoint, tmp_path).restore_or_initialize() == 11


def test_a_folder_of_the_user_is_not_overwritten(checkpoint, tmp_path):
    (tmp_path / "3").mkdir()
    with pytest.raises(CheckpointError, match=r"3 could not be written: .* already"):
        save(checkpoint, tmp_path, 3)
    assert list((tmp_path / "3").iterdir()) == []
    assert checkpoint.save(tmp_path) == str(tmp_path / "4")


def test_checkpoints_that_the_user_saved_stay(checkpoint, tmp_path):
    """`Checkpoint.save` is the user's decision; only those of managers are counted and deleted."""
    assert checkpoint.save(tmp_path) == str(tmp_path / "0")
    manager = save(checkpoint, tmp_path, 1, 2, 3, max_to_keep=2)
    assert manager.checkpoints == [0, 2, 3]


def test_a_copy_under_another_number_stays(checkpoint, tmp_path):
    save(checkpoint, tmp_path, 5)
    shutil.copytree(tmp_path / "5", tmp_path / "1")
    manager = save(checkpoint, tmp_path, 6, max_to_keep=1)
    assert manager.checkpoints == [1, 6]


def test_checkpoints_of_orbax_itself_stay(checkpoint, tmp_path):
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "0", {"w": np.ones(3)})
    manager = save(checkpoint, tmp_path, 1, 2, max_to_keep=1)
    assert manager.checkpoints == [2]
    assert names(tmp_path) == ["0", "2"]


def test_a_manager_whose_prefix_begins_like_that_of_another_deletes_its_own(checkpoint, tmp_path):
    save(checkpoint, tmp_path, 1, 2, prefix="run1")  # run11, run12
    save(checkpoint, tmp_path, 20, 21, prefix="run", max_to_keep=1)
    assert names(tmp_path) == ["run11", "run12", "run21"]
