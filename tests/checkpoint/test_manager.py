"""Saving in the background: when, how many are kept, and that errors and threads are not lost."""

import atexit
import gc
import logging
import pathlib
import subprocess
import sys
import textwrap
import threading
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import _background, _store
from replicax.errors import CheckpointError, CheckpointMismatchError, CheckpointMissingError


@pytest.fixture
def w():
    return rx.Variable(jnp.zeros(3), name="w")


@pytest.fixture
def checkpoint(w):
    return rx.Checkpoint(w=w)


class Gate:
    """Lets background saves wait until a test opens it, or fail."""

    def __init__(self, monkeypatch):
        self.open, self.reached = threading.Event(), threading.Event()
        self.error = None
        original = _store.Store.save

        def save(store, step, content):
            self.reached.set()
            assert self.open.wait(30)
            if self.error is not None:
                raise self.error
            original(store, step, content)

        monkeypatch.setattr(_store.Store, "save", save)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


def writers():
    return [t for t in threading.enumerate() if t.name.startswith("replicax")]


# When, and how many.


@pytest.mark.parametrize("asynchronous", [True, False])
def test_every_so_often_and_the_newest_are_kept(checkpoint, w, asynchronous, tmp_path):
    with rx.CheckpointManager(
        checkpoint, tmp_path, max_to_keep=3, save_interval=5, asynchronous=asynchronous
    ) as manager:
        saved = []
        for step in range(31):
            w.assign(jnp.full(3, step))
            if manager.save(step):
                saved.append(step)
        manager.wait()
        assert saved == [0, 5, 10, 15, 20, 25, 30]
        assert manager.checkpoints == [20, 25, 30]
        assert manager.latest_checkpoint == str(tmp_path / "30")
        for step in manager.checkpoints:
            manager.restore(step).assert_consumed()
            assert w.read_value().tolist() == [step] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["20", "25", "30"]


def test_all_are_kept_if_asked(checkpoint, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path, max_to_keep=None) as manager:
        for _ in range(7):
            assert manager.save()
    assert manager.checkpoints == list(range(7))


def test_saving_can_be_forced_between_the_intervals(checkpoint, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path, save_interval=10) as manager:
        assert not manager.save(3)
        assert manager.save(3, force=True)
        assert manager.save(10)
    assert manager.checkpoints == [3, 10]


def test_numbers_go_on_from_the_newest(checkpoint, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        manager.save(41)
        manager.save()
    assert manager.checkpoints == [41, 42]


@pytest.mark.parametrize("step", [np.int64(4), jnp.asarray(4)])
def test_a_number_of_numpy_or_jax_is_a_number(checkpoint, step, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path, save_interval=2) as manager:
        assert manager.save(step)
    assert manager.checkpoints == [4]


@pytest.mark.parametrize("step", [-1, True, 2.0, "4", 1.5])
def test_what_is_no_number_of_a_step_is_refused(checkpoint, step, tmp_path):
    with (
        rx.CheckpointManager(checkpoint, tmp_path) as manager,
        pytest.raises((CheckpointError, TypeError), match=r"save\("),
    ):
        manager.save(step)
    assert manager.checkpoints == []


@pytest.mark.parametrize("arguments", [{"max_to_keep": 0}, {"max_to_keep": -1}, {"save_interval": 0}])
def test_arguments_without_meaning_are_refused(checkpoint, arguments, tmp_path):
    with pytest.raises(CheckpointError, match=next(iter(arguments))):
        rx.CheckpointManager(checkpoint, tmp_path, **arguments)


def test_anything_but_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"rx\.Checkpoint"):
        rx.CheckpointManager({"w": 1}, tmp_path)


def test_making_a_manager_makes_nothing_on_disk(checkpoint, tmp_path):
    manager = rx.CheckpointManager(checkpoint, tmp_path / "new")
    assert manager.checkpoints == []
    assert manager.latest_checkpoint is None
    assert not (tmp_path / "new").exists()
    assert "new" in repr(manager)
    assert manager.directory == str(tmp_path / "new")


# In the background.


def test_the_values_are_those_of_the_call(checkpoint, w, gate, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        w.assign(jnp.ones(3))
        manager.save(0)
        assert gate.reached.wait(30)
        w.assign(jnp.full(3, 2.0))
        gate.open.set()
        manager.wait()
        manager.restore(0)
    assert w.read_value().tolist() == [1.0] * 3


def test_saving_returns_before_it_is_written(checkpoint, gate, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        assert manager.save(0)
        assert manager.checkpoints == []
        assert len(writers()) == 1
        gate.open.set()
        manager.wait()
        assert manager.checkpoints == [0]
        assert not writers()


def test_a_second_save_waits_for_the_first(checkpoint, w, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path, max_to_keep=None) as manager:
        for step in range(5):
            manager.save(step)
            assert len(writers()) <= 1
    assert manager.checkpoints == [0, 1, 2, 3, 4]


def test_restoring_waits_for_what_is_being_written(checkpoint, w, gate, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        w.assign(jnp.ones(3))
        manager.save(0)
        w.assign(jnp.zeros(3))
        timer = threading.Timer(0.1, gate.open.set)
        timer.start()
        assert manager.restore_or_initialize() == 0
        timer.join()
    assert w.read_value().tolist() == [1.0] * 3


@pytest.mark.parametrize("call", ["save", "wait", "close", "restore", "restore_or_initialize"])
def test_an_error_in_the_background_comes_with_the_next_call_once(checkpoint, gate, call, tmp_path):
    manager = rx.CheckpointManager(checkpoint, tmp_path)
    gate.error = CheckpointError("the disk is broken")
    gate.open.set()
    manager.save(0)
    arguments = {"save": (1,), "restore": (0,)}.get(call, ())
    with pytest.raises(CheckpointError, match="the disk is broken"):
        getattr(manager, call)(*arguments)
    gate.error = None
    manager.wait()
    manager.save(2)
    manager.close()
    assert manager.checkpoints == [2]
    assert not writers()


def test_an_error_is_not_lost_if_there_is_no_next_call(checkpoint, gate, caplog, tmp_path):
    manager = rx.CheckpointManager(checkpoint, tmp_path)
    gate.error = CheckpointError("the disk is broken")
    gate.open.set()
    manager.save(0)
    del manager
    gc.collect()
    assert "the disk is broken" in caplog.text


def test_an_error_at_the_end_of_a_with_block_does_not_hide_that_of_the_block(checkpoint, gate, tmp_path):
    gate.error = CheckpointError("the disk is broken")
    gate.open.set()
    manager = rx.CheckpointManager(checkpoint, tmp_path)
    with pytest.raises((ZeroDivisionError, CheckpointError)) as raised, manager:
        manager.save(0)
        raise ZeroDivisionError
    errors = {type(raised.value), type(raised.value.__context__)}
    assert ZeroDivisionError in errors


def test_a_manager_that_is_dropped_finishes_its_work(checkpoint, tmp_path):
    manager = rx.CheckpointManager(checkpoint, tmp_path)
    manager.save(0)
    del manager
    gc.collect()
    assert not writers()
    assert (tmp_path / "0").is_dir()


@pytest.mark.parametrize("num_floats", [10, 3_000_000])
def test_a_program_that_ends_after_saving_has_saved(num_floats, tmp_path):
    program = f"""
        import numpy as np
        import replicax as rx

        w = rx.Variable(np.ones({num_floats}, np.float32), name="w")
        manager = rx.CheckpointManager(rx.Checkpoint(w=w), {str(tmp_path)!r})
        manager.save(0)
        manager.save(1)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"], ended.stderr
    assert ended.returncode == 0


def test_a_python_without_exit_hooks_of_threads_finishes_at_exit(checkpoint, tmp_path, monkeypatch):
    manager = rx.CheckpointManager(checkpoint, tmp_path)
    registered = []
    monkeypatch.delattr(threading, "_register_atexit")
    monkeypatch.setattr(atexit, "register", registered.append)
    monkeypatch.setattr(_background, "_writers", weakref.WeakSet())
    _background.finish_at_exit(manager._writer)
    manager.save(0)
    (at_exit,) = registered
    at_exit()
    assert not writers()
    assert (tmp_path / "0").is_dir()


def test_closing_twice_is_closing_once(checkpoint, tmp_path):
    manager = rx.CheckpointManager(checkpoint, tmp_path)
    manager.save(0)
    manager.close()
    manager.close()
    assert manager.checkpoints == [0]


def test_managers_of_two_directories_save_at_the_same_time(tmp_path):
    """And leave the level of Orbax's logger as it was."""
    before = logging.getLogger("absl").level
    managers = [
        rx.CheckpointManager(rx.Checkpoint(w=rx.Variable(np.zeros(n, np.float32))), tmp_path / f"of_{n}")
        for n in (10, 3_000_000)
    ]
    errors = []
    for step in range(6):
        for manager in managers:
            try:
                manager.save(step)
            except CheckpointError as error:
                errors.append(error)
    for manager in managers:
        try:
            manager.close()
        except CheckpointError as error:
            errors.append(error)
    assert not errors
    for manager in managers:
        assert manager.checkpoints == [1, 2, 3, 4, 5]
    assert logging.getLogger("absl").level == before


# Never overwritten.


def test_an_existing_checkpoint_is_not_overwritten(checkpoint, w, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        manager.save(3)
        manager.wait()
        w.assign(jnp.ones(3))
        with pytest.raises(CheckpointError, match=r"already.*never overwritten"):
            manager.save(3)
        manager.restore(3)
    assert w.read_value().tolist() == [0.0] * 3


def test_a_checkpoint_that_is_being_written_is_not_overwritten(checkpoint, gate, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        manager.save(3)
        threading.Timer(0.1, gate.open.set).start()
        with pytest.raises(CheckpointError, match="never overwritten"):
            manager.save(3)


def test_going_back_and_saving_earlier_steps_keeps_the_new_ones(checkpoint, tmp_path):
    """After a restore of an old step: what is saved must not be deleted at once as the oldest."""
    with rx.CheckpointManager(checkpoint, tmp_path, max_to_keep=2) as manager:
        for step in (10, 20, 30):
            manager.save(step)
        manager.save(15)
    assert 15 in manager.checkpoints


# Restoring.


def test_without_checkpoints_everything_is_as_it_was(checkpoint, w, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path / "new") as manager:
        assert manager.restore_or_initialize() is None
        with pytest.raises(CheckpointMissingError, match="3"):
            manager.restore(3)
    assert w.read_value().tolist() == [0.0] * 3


def test_the_newest_is_restored(checkpoint, w, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        for step in (1, 9, 10):
            w.assign(jnp.full(3, step))
            manager.save(step)
    w.assign(jnp.zeros(3))
    assert rx.CheckpointManager(checkpoint, tmp_path).restore_or_initialize() == 10
    assert w.read_value().tolist() == [10.0] * 3


def spoil(path):
    for file in pathlib.Path(path).rglob("*"):
        if file.is_file():
            file.write_bytes(b"")


def test_an_older_one_is_taken_if_the_newest_can_not_be_read(checkpoint, w, caplog, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        for step in range(4):
            w.assign(jnp.full(3, step))
            manager.save(step)
        manager.wait()
        spoil(tmp_path / "3")
        spoil(tmp_path / "2")
        assert manager.restore_or_initialize() == 1
    assert w.read_value().tolist() == [1.0] * 3
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    for part in (str(tmp_path / "3"), str(tmp_path / "2"), "older checkpoint 1"):
        assert part in line


def test_saving_goes_on_after_falling_back(checkpoint, w, tmp_path):
    """The loop comes again to the steps whose checkpoints can't be read."""
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        for step in range(3):
            manager.save(step)
        manager.wait()
        spoil(tmp_path / "2")
        assert manager.restore_or_initialize() == 1
        w.assign(jnp.full(3, 7.0))
        manager.save(2)
        manager.wait()
        w.assign(jnp.zeros(3))
        assert manager.restore_or_initialize() == 2
    assert w.read_value().tolist() == [7.0] * 3


def test_if_none_can_be_read_all_are_named(checkpoint, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        manager.save(0)
        manager.save(1)
        manager.wait()
        spoil(tmp_path)
        with pytest.raises(CheckpointError, match=r"(?s)None of the checkpoints.*/1 .*/0 "):
            manager.restore_or_initialize()


def test_a_newest_of_another_model_is_no_reason_to_go_back(checkpoint, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path) as manager:
        manager.save(0)
    with rx.CheckpointManager(rx.Checkpoint(other=rx.Variable(1.0)), tmp_path) as manager:
        manager.save(1)
    with pytest.raises(CheckpointMismatchError, match="other"):
        rx.CheckpointManager(checkpoint, tmp_path).restore_or_initialize()


# Two managers.


def test_two_managers_take_turns_in_one_directory(checkpoint, w, tmp_path):
    first, second = (rx.CheckpointManager(checkpoint, tmp_path, max_to_keep=3) for _ in range(2))
    for step in range(6):
        (first if step % 2 else second).save(step)
        first.wait()
        second.wait()
    assert first.checkpoints == second.checkpoints == [3, 4, 5]
    with pytest.raises(CheckpointError, match="already"):
        second.save(5)


def test_a_second_manager_leaves_alone_what_the_first_is_writing(checkpoint, monkeypatch, tmp_path):
    """An evaluator that opens the folder of a running training must not destroy its checkpoint."""
    import orbax.checkpoint as ocp

    writing, go_on = threading.Event(), threading.Event()
    finish = ocp.JsonCheckpointHandler.finalize

    def finalize(self, *args, **kwargs):
        writing.set()
        assert go_on.wait(30)
        return finish(self, *args, **kwargs)

    monkeypatch.setattr(ocp.JsonCheckpointHandler, "finalize", finalize)
    first = rx.CheckpointManager(checkpoint, tmp_path)
    first.save(0)
    assert writing.wait(30)
    try:
        rx.CheckpointManager(checkpoint, tmp_path)
    finally:
        go_on.set()
    first.close()
    assert first.checkpoints == [0]


def test_saving_from_two_threads_is_safe(checkpoint, tmp_path):
    errors = []
    with rx.CheckpointManager(checkpoint, tmp_path, max_to_keep=None) as manager:

        def save(steps):
            try:
                for step in steps:
                    manager.save(step)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=save, args=(range(i, 8, 2),)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert manager.checkpoints == list(range(8))


@pytest.mark.parametrize("prefix", ["ckpt-", "ckpt", "run1", "0", "a.b_"])
def test_a_checkpoint_with_any_prefix_is_found_by_its_path(checkpoint, w, prefix, tmp_path):
    with rx.CheckpointManager(checkpoint, tmp_path, prefix=prefix) as manager:
        manager.save(20)
    assert manager.checkpoints == [20]
    w.assign(-1.0)
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    assert w.numpy().tolist() == [0, 0, 0]


def test_a_prefix_is_no_folder(checkpoint, tmp_path):
    with pytest.raises(CheckpointError, match="Put the folder into `directory`"):
        rx.CheckpointManager(checkpoint, tmp_path, prefix="sub/")
