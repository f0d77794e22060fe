"""What the command line takes, refuses and explains."""

import os
import re
import subprocess
import sys
from importlib import metadata

import jax
import pytest

from replicax.cli import main
from replicax.cli._demo import LARGEST_BATCH
from replicax.cli._extras import MissingExtraError, require_extra
from replicax.cli._main import _MOST_REPLICAS
from replicax.errors import CheckpointError


def test_without_arguments_it_tells_what_there_is(capsys):
    assert main([]) == 0
    output = capsys.readouterr().out
    assert "demo" in output and "doctor" in output and "python -m replicax" in output


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["doctor", "--help"]])
def test_help(capsys, arguments):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 0
    assert "--" in capsys.readouterr().out


def test_version_as_a_program():
    command = [sys.executable, "-m", "replicax", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.match(
        rf"replicax {metadata.version('replicax')} \(jax [\d.]+, Python [\d.]+\)", result.stdout
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dem"], "invalid choice: 'dem'"),
        (["demo", "--strategy", "tpu"], "'mirrored', 'one-device', 'central-storage'"),
        (["demo", "--replicas", "0"], "expected an integer, 1 or more, got '0'"),
        (["demo", "--replicas", "99999"], "expected at most 64, got '99999'"),
        (["demo", "--epochs", "many"], "expected an integer, 1 or more, got 'many'"),
        (["demo", "--epoch"], "expected one argument"),
        (["doctor", "--xml"], "unrecognized arguments: --xml"),
    ],
)
def test_bad_arguments_are_named(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert message in error.replace(
        "mirrored, one-device, central-storage", "'mirrored', 'one-device', 'central-storage'"
    )


def test_one_device_has_one_replica(capsys):
    assert main(["demo", "--strategy", "one-device", "--replicas", "2"]) == 2
    assert "the strategy one-device has one replica" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("optax", "demo"),
        ("orbax", "demo"),
        ("rich", "demo"),
        ("sklearn", "demo"),
        ("tensorboardX", "tensorboard"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, capsys, tmp_path, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo", "--output", str(tmp_path), "--tensorboard", str(tmp_path)]) == 2
    assert f"pip install 'replicax[{extra}]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_all_missing_packages_are_named():
    with pytest.raises(MissingExtraError, match="this needs one, two, which are not installed"):
        require_extra("some", replicax="replicax", no_such_1="one", no_such_2="two")


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr("replicax.cli._doctor.run_doctor", interrupted)
    assert main(["doctor"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--output", "--tensorboard", "--profile"])
@pytest.mark.parametrize("folder", ["afile", "afile/below"])
def test_a_folder_that_can_not_be_written_is_named_before_training(
    monkeypatch, capsys, tmp_path, option, folder
):
    (tmp_path / "afile").touch()
    monkeypatch.setattr("replicax.cli._demo._Demo", lambda *args: pytest.fail("the demo began"))
    arguments = ["--output", str(tmp_path / "output"), option, str(tmp_path / folder)]
    assert main(["demo", "--replicas", "8", *arguments]) == 2
    error = capsys.readouterr().err
    assert f"replicax demo: {option} {tmp_path / folder}: can't write there: " in error
    assert error.count("\n") == 1


def test_no_more_replicas_than_examples_in_a_step():
    assert _MOST_REPLICAS == LARGEST_BATCH


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (AssertionError(), "JAX_PLATFORMS is cuda, which JAX can't use here. Unset JAX_PLATFORMS"),
        (RuntimeError("No\nplugin."), "which JAX can't use here: No plugin. Unset JAX_PLATFORMS"),
    ],
)
def test_devices_that_are_not_there_are_named(monkeypatch, capsys, tmp_path, error, message):
    def devices():
        raise error

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert main(["demo", "--replicas", "8", "--output", str(tmp_path / "output")]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), CheckpointError("No space left on device")]
)
def test_a_full_disk_is_no_traceback(monkeypatch, capsys, error):
    def full(options):
        raise error

    monkeypatch.setattr("replicax.cli._demo.run_demo", full)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err.endswith("No space left on device\n")


def test_output_that_nobody_reads_is_no_error(monkeypatch, capsys):
    def unread(**options):
        raise BrokenPipeError

    monkeypatch.setattr("replicax.cli._doctor.run_doctor", unread)
    assert main(["doctor"]) == 141
    assert capsys.readouterr().err == ""


def test_output_that_nobody_reads_as_a_program():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "replicax", "--help"]
    buffered = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with os.fdopen(write) as closed:
        result = subprocess.run(
            command,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
            env=buffered,
        )
    assert (result.returncode, result.stderr) == (141, "")
