"""`rx.on_first_process` and `rx.profile`."""

import logging

import jax
import jax.numpy as jnp
import pytest

import replicax as rx


@pytest.fixture
def logger():
    logger = logging.getLogger("tests.tracking")
    logger.addFilter(rx.on_first_process)
    yield logger
    logger.removeFilter(rx.on_first_process)


@pytest.mark.parametrize(("process", "messages"), [(0, ["hello"]), (1, [])])
def test_logs_of_other_processes_are_left_out(monkeypatch, caplog, logger, process, messages):
    monkeypatch.setattr(jax, "process_index", lambda: process)
    logger.warning("hello")
    assert caplog.messages == messages
    assert rx.on_first_process() == (process == 0)


def test_profile_records_the_block(tmp_path):
    with rx.profile(tmp_path / "trace"):
        jax.block_until_ready(jnp.ones(3) * 2)
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


def test_profile_of_an_error_is_ended(tmp_path):
    for name in ("first", "second"):
        with pytest.raises(ZeroDivisionError), rx.profile(tmp_path / name):
            1 / 0  # noqa: B018


@pytest.mark.parametrize("folder", ["afile", "afile/trace"])
def test_profile_refuses_a_bad_folder_first(tmp_path, folder):
    (tmp_path / "afile").touch()
    with (
        pytest.raises(OSError, match=r"rx.profile\(.*can't write there: .*Pass a writable folder"),
        rx.profile(tmp_path / folder),
    ):
        pytest.fail("the block was run")


def test_a_recording_that_can_not_be_written_does_not_stop_the_next(tmp_path):
    folder = tmp_path / "trace"
    with pytest.raises(OSError, match="could not write the profile"), rx.profile(folder):
        folder.rmdir()
        folder.touch()
    with rx.profile(tmp_path / "other"):
        jax.block_until_ready(jnp.ones(3) * 2)
    assert list((tmp_path / "other").rglob("*.xplane.pb"))


def test_profile_can_be_switched_off(monkeypatch, tmp_path):
    with rx.profile(None):
        pass
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with rx.profile(tmp_path / "trace"):
        pass
    assert not list(tmp_path.iterdir())
