"""Full disks, folders that can not be written, damaged files: said clearly, and nothing is lost."""

import contextlib
import errno
import logging
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError, ReplicaxError

NUM_FLOATS = 100_000  # 0.4 MB

# Orbax leaves an event loop open when reading fails, which complains about it later.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def values(seed, size=NUM_FLOATS):
    return np.random.default_rng(seed).random(size, np.float32)


@contextlib.contextmanager
def mounted(*arguments):
    """A file system of its own, where we may mount one."""
    folder = pathlib.Path(arguments[-1])
    if sys.platform != "linux" or subprocess.run(["mount", *arguments], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield folder
    finally:
        unmount(folder)


def unmount(folder, patience=30.0):
    """Tensorstore's threads close a file a moment after the read that they answered."""
    end = time.monotonic() + patience
    while (result := subprocess.run(["umount", str(folder)], capture_output=True, text=True)).returncode:
        assert time.monotonic() < end, result.stderr
        time.sleep(0.01)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 2 MB."""
    with mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)) as folder:
        yield folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# A full disk.


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_checkpoint_that_is_larger_than_what_is_left_is_refused(asynchronous, small_disk):
    w = rx.Variable(values(0))
    checkpoint = rx.Checkpoint(w=w)
    manager = rx.CheckpointManager(checkpoint, small_disk, asynchronous=asynchronous)
    with pytest.raises(CheckpointError, match=r"MB") as raised:
        for step in range(8):
            w.assign(values(step))
            manager.save(step)
        manager.wait()
    assert str(small_disk) in str(raised.value)
    kept = manager.checkpoints
    assert kept and kept == list(range(len(kept)))
    for step in kept:
        manager.restore(step).assert_consumed()
        assert np.array_equal(w.read_value(), values(step))
    assert names(small_disk) == [str(step) for step in kept]
    manager.close()


def test_a_disk_that_fills_up_while_a_checkpoint_is_written(small_disk, monkeypatch):
    """The room looked sufficient, and somebody else took it."""
    w = rx.Variable(values(0))
    checkpoint = rx.Checkpoint(w=w)
    checkpoint.save(small_disk)
    usage = shutil.disk_usage(small_disk)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    (small_disk / "filler").write_bytes(b"x" * (usage.free - 200_000))
    with pytest.raises(CheckpointError, match=r"(?i)no space|ENOSPC|full|space left"):
        checkpoint.save(small_disk)
    assert names(small_disk) == ["0", "filler"]
    (small_disk / "filler").unlink()
    w.assign(jnp.zeros(NUM_FLOATS))
    checkpoint.restore(small_disk).assert_consumed()
    assert np.array_equal(w.read_value(), values(0))
    assert checkpoint.save(small_disk) == str(small_disk / "1")


def test_training_goes_on_after_a_full_disk(small_disk, monkeypatch):
    w = rx.Variable(values(0))
    manager = rx.CheckpointManager(rx.Checkpoint(w=w), small_disk, max_to_keep=1)
    manager.save(0)
    manager.wait()
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 100_000))
    manager.save(1)
    with pytest.raises(CheckpointError, match="MB"):
        manager.wait()
    filler.unlink()
    w.assign(values(2))
    manager.save(2)
    manager.close()
    assert manager.checkpoints == [2]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_an_error_of_the_system_is_told_in_its_words(code, tmp_path, monkeypatch):
    checkpoint = rx.Checkpoint(w=rx.Variable(1.0), n=1)
    checkpoint.save(tmp_path)

    def mkdir(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(pathlib.Path, "mkdir", mkdir)
    with pytest.raises(CheckpointError, match=os.strerror(code)):
        checkpoint.save(tmp_path)
    monkeypatch.undo()
    checkpoint.restore(tmp_path).assert_consumed()


# What is logged.


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failed_save_is_told_once_and_by_us(asynchronous, small_disk, monkeypatch, capfd):
    usage = shutil.disk_usage(small_disk)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    checkpoint = rx.Checkpoint(w=rx.Variable(values(0, 1_000_000)))
    manager = rx.CheckpointManager(checkpoint, small_disk, asynchronous=asynchronous)
    handler = logging.StreamHandler()  # as Orbax' messages are shown outside of pytest
    logging.getLogger("absl").addHandler(handler)
    try:
        with pytest.raises(CheckpointError, match="No space left"):
            manager.save(0)
            manager.wait()
    finally:
        logging.getLogger("absl").removeHandler(handler)
    assert capfd.readouterr().err == ""
    manager.close()


def test_warnings_of_others_are_shown_while_a_checkpoint_is_written(tmp_path, monkeypatch, caplog):
    import orbax.checkpoint as ocp
    from absl import logging as absl_logging

    finish = ocp.JsonCheckpointHandler.finalize

    def finalize(self, *args, **kwargs):
        absl_logging.warning("about the data")
        absl_logging.error("about the model")
        return finish(self, *args, **kwargs)

    monkeypatch.setattr(ocp.JsonCheckpointHandler, "finalize", finalize)
    logger = logging.getLogger("absl")
    level, filters = logger.level, list(logger.filters)
    with caplog.at_level(logging.INFO):
        rx.Checkpoint(w=rx.Variable(1.0)).save(tmp_path)
    assert [r.getMessage() for r in caplog.records if r.name == "absl"] == [
        "about the data",
        "about the model",
    ]
    assert (logger.level, logger.filters) == (level, filters)


# Folders.


def test_a_folder_that_can_only_be_read(tmp_path):
    """The checkpoints in it can be restored, and a save says why it can't be."""
    w = rx.Variable(1.0)
    checkpoint = rx.Checkpoint(w=w)
    checkpoint.save(tmp_path)
    with mounted("--bind", str(tmp_path), str(tmp_path)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(tmp_path)], check=True)
        with pytest.raises(CheckpointError, match="Read-only file system"):
            checkpoint.save(tmp_path)
        manager = rx.CheckpointManager(checkpoint, tmp_path)
        manager.save(5)
        with pytest.raises(CheckpointError, match="Read-only file system"):
            manager.wait()
        w.assign(0.0)
        assert manager.restore_or_initialize() == 0
    assert float(w.read_value()) == 1.0
    assert names(tmp_path) == ["0"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="Permission denied"):
        rx.Checkpoint(w=rx.Variable(1.0)).save(tmp_path)


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("hello")
    checkpoint = rx.Checkpoint(w=rx.Variable(1.0))
    with pytest.raises(CheckpointError, match="file"):
        checkpoint.save(tmp_path / "file")
    with pytest.raises(CheckpointError, match="file"):
        checkpoint.restore(tmp_path / "file")


def test_a_folder_that_is_removed_while_training(tmp_path):
    manager = rx.CheckpointManager(rx.Checkpoint(w=rx.Variable(1.0)), tmp_path / "runs")
    manager.save(0)
    manager.wait()
    shutil.rmtree(tmp_path / "runs")
    manager.save(1)
    manager.close()
    assert manager.checkpoints == [1]


# Damaged files.


class Saved:
    """A checkpoint on disk, and whether what is restored from a damaged one is right."""

    def __init__(self, folder):
        self.folder = folder
        self.w, self.b = rx.Variable(values(0, 2000), name="w"), rx.Variable([1.0, 2.0], name="b")
        self.data = rx.from_arrays(np.arange(100)).batch(4)
        self.iterator = iter(rx.get_strategy().distribute_dataset(self.data))
        next(self.iterator)
        self.checkpoint = rx.Checkpoint(m=[self.w, self.b], it=self.iterator, epoch=31)
        self.path = pathlib.Path(self.checkpoint.save(folder))
        self.right = self._content()

    def files(self):
        return sorted(path.relative_to(self.path) for path in self.path.rglob("*") if path.is_file())

    def _content(self):
        content = self.checkpoint.content()
        arrays = {name: array.tobytes() for name, array in content.arrays.items()}
        return arrays, content.document

    def verdict(self, file, data):
        """What comes of a restore when one file holds `data`: error, right or wrong."""
        damaged = self.folder / "1"
        shutil.copytree(self.path, damaged)
        try:
            if data is None:
                (damaged / file).unlink()
            else:
                (damaged / file).write_bytes(data)
            self.w.assign(jnp.zeros(2000))
            self.b.assign([0.0, 0.0])
            self.checkpoint.epoch = 0
            try:
                self.checkpoint.restore(damaged).assert_consumed()
            except CheckpointError as error:
                assert str(damaged) in str(error)
                return "error"
            return "right" if self._content() == self.right else "wrong"
        finally:
            shutil.rmtree(damaged)


@pytest.fixture
def saved(tmp_path, capfd):
    saved = Saved(tmp_path)
    yield saved
    saved.iterator.close()


def complaints(found):
    return {str(file): verdicts for file, verdicts in found.items() if verdicts - {"error", "right"}}


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_an_error_or_does_not_matter(part, saved):
    found = {}
    for file in saved.files():
        data = (saved.path / file).read_bytes()
        found[file] = {_tried(saved, file, data[: int(len(data) * part)])}
    assert not complaints(found)
    assert {"error"} in found.values()


def test_a_file_that_is_gone_is_an_error_or_does_not_matter(saved):
    found = {file: {_tried(saved, file, None)} for file in saved.files()}
    assert not complaints(found)
    assert {"error"} in found.values()


def test_a_flipped_bit_is_an_error_or_does_not_matter(saved):
    """In every file, at the beginning, at the end and at random places."""
    chance, found = random.Random(0), {}
    for file in saved.files():
        data = (saved.path / file).read_bytes()
        places = {0, len(data) - 1, *(chance.randrange(len(data)) for _ in range(10))} if data else set()
        found[file] = {_tried(saved, file, _flipped(data, place, chance)) for place in places}
    assert not complaints(found)


def test_every_bit_of_the_document_counts(saved):
    """It holds the numbers at the root, and the positions in the data."""
    (file,) = [file for file in saved.files() if file.parts[0] == "document" and file.name == "metadata"]
    data = (saved.path / file).read_bytes()
    chance = random.Random(1)
    verdicts = {i: _tried(saved, file, _flipped(data, i, chance)) for i in range(len(data))}
    wrong = {
        i: (data[max(0, i - 12) : i + 4], v) for i, v in verdicts.items() if v not in ("error", "right")
    }
    assert not wrong


def test_garbage_in_a_file_is_an_error_or_does_not_matter(saved):
    garbage = np.random.default_rng(0).bytes(300)
    found = {file: {_tried(saved, file, garbage)} for file in saved.files()}
    assert not complaints(found)


def _flipped(data, place, chance):
    damaged = bytearray(data)
    damaged[place] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def _tried(saved, file, data):
    try:
        return saved.verdict(file, data)
    except ReplicaxError as error:
        return f"{type(error).__name__}, which is no CheckpointError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_errors_about_damaged_files_are_short_and_name_the_checkpoint(saved, capfd):
    for file in saved.files():
        (saved.path / file).write_bytes(b"")
    with pytest.raises(CheckpointError) as raised:
        saved.checkpoint.restore(saved.path)
    message = str(raised.value)
    assert str(saved.path) in message
    assert len(message) < 700
    assert "\n" not in message
    assert "Traceback" not in capfd.readouterr().err


# Another program's.


def test_a_checkpoint_that_orbax_wrote_for_somebody_else(tmp_path):
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "0", {"w": np.ones(3)})
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        rx.Checkpoint(w=rx.Variable(jnp.ones(3))).restore(tmp_path)
