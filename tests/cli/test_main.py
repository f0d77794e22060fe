"""What the command line takes, refuses and explains."""

import re
import subprocess
import sys
from importlib import metadata

import pytest

from replicax.cli import main
from replicax.cli._extras import MissingExtraError, require_extra


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
        (["demo", "--replicas", "0"], "expected a whole number, 1 or more, got '0'"),
        (["demo", "--epochs", "many"], "expected a whole number, 1 or more, got 'many'"),
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
    ("package", "extra"), [("rich", "demo"), ("sklearn", "demo"), ("tensorboardX", "tensorboard")]
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
