"""The examples run and print the expected results; `tests/docs` checks that the pages quote them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Further down these are run and their outputs compared; `images` is a module that some of them import.
ELSEWHERE = (
    "custom_training",
    "custom_training_tf",
    "images",
    "one_device",
    "quick_start",
    "resumable_training",
)
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem not in ELSEWHERE)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path):
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


def _output(path):
    return subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=240, check=True
    ).stdout


def test_both_custom_training_loops_reach_the_same_losses():
    outputs = [
        _output(ROOT / "examples" / name) for name in ("custom_training.py", "custom_training_tf.py")
    ]
    plain, ported = ([float(number) for number in re.findall(r"[\d.]+", text)] for text in outputs)
    assert len(plain) == len(ported) > 20
    assert plain == pytest.approx(ported, rel=1e-5)
    assert "Accuracy after restoring on one device: 9" in outputs[0]


def test_the_quick_start_computes_what_one_device_computes():
    one, many = (_output(ROOT / "examples" / name) for name in ("one_device.py", "quick_start.py"))
    assert one == many
    assert "weights [ 1. -2.  3.] bias 0.5" in many
    assert many in (ROOT / "docs" / "quick_start.md").read_text()


def test_the_resumable_training_continues_on_two_workers_after_a_failure(tmp_path):
    command = [sys.executable, "-m", "replicax", "launch", "--workers", "2", "--max-restarts", "1"]
    command += ["--log-dir", str(tmp_path / "logs"), str(ROOT / "examples" / "resumable_training.py")]
    command += ["--folder", str(tmp_path / "checkpoints"), "--steps", "30", "--fail-at", "25"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "worker 1 failed with exit status 1" in result.stderr
    losses = re.findall(r"step (\d+)  loss ([\d.]+)", result.stdout)
    assert {int(step) for step, _ in losses} == {5, 10, 15, 20, 25, 30}
    assert len(dict(losses)) == len(set(losses))  # repeated steps have the same losses
    assert re.search("from step [12]0$", result.stdout, re.MULTILINE)
