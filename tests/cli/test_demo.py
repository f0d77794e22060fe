"""The demo, as a program and in its parts."""

import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from tests import environment

from replicax.cli._digits import Digits
from replicax.cli._picture import draw_picture
from replicax.cli._progress import History, Progress


def run_demo(tmp_path, *arguments, **settings):
    command = [sys.executable, "-m", "replicax", "demo", "--output", str(tmp_path), *arguments]
    own = environment.of_programs(**settings)
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=own)


def size_of_png(path):
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def check_output(result, tmp_path, num_replicas):
    """It trained, stopped, resumed, and drew; the exit status says whether it learned enough."""
    output = result.stdout
    assert not result.stderr, result.stderr
    steps = [int(step) for step in re.findall(r"step +(\d+)/\d+ ", output)]
    (middle,) = re.findall(r"Step (\d+): .* and stopped", output)
    assert int(middle) in steps and steps == sorted(steps) and steps[-1] >= 2 * int(middle)
    saved, fresh, resumed, last = (float(x) for x in re.findall(r"accuracy:? ([\d.]+)% \(", output))
    assert f"Resumed from the checkpoint at step {middle}" in output
    assert resumed == saved > fresh
    assert result.returncode == (0 if last >= 97 else 1), output
    shares = re.findall(r"^(\d+) +(CPU:\d+) +([\d,]+) +([\d.]+)%", output, re.MULTILINE)
    assert len(shares) == num_replicas
    examples = [int(count.replace(",", "")) for _, _, count, _ in shares]
    assert examples == [64 // num_replicas * steps[-1]] * num_replicas
    width, height = size_of_png(tmp_path / "demo.png")
    assert 1000 < width < 2000 and 400 < height < 1500
    assert f"Picture: {tmp_path}" in output
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["demo.png"]
    return last


def test_mirrored_learns_enough(tmp_path):
    result = run_demo(tmp_path, "--epochs", "6", XLA_FLAGS="")  # compiled as a user's
    assert check_output(result, tmp_path, num_replicas=4) >= 97


def test_one_device(tmp_path):
    check_output(run_demo(tmp_path, "--epochs", "1", "--strategy", "one-device"), tmp_path, num_replicas=1)


def test_central_storage_with_tensorboard_and_profile(tmp_path):
    extras = ["--tensorboard", str(tmp_path / "logs"), "--profile", str(tmp_path / "trace")]
    arguments = ["--epochs", "1", "--strategy", "central-storage", "--replicas", "3"]
    check_output(run_demo(tmp_path, *arguments, *extras), tmp_path, num_replicas=3)
    assert len(list((tmp_path / "logs").glob("events*"))) == 1
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))
    assert not list(tmp_path.glob("checkpoints_*"))


def test_progress_is_a_bar_on_a_terminal():
    import io

    from rich.console import Console

    threads = set(threading.enumerate())
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    progress = Progress(console, num_steps=10, batch_size=64)
    with progress.training():
        for step in range(1, 6):
            progress(step, {"loss": 1 / step, "accuracy": 0.5, "input_wait": 0.01})
    output = screen.getvalue()
    assert "━" in output and "5/10" in output
    assert "loss 0.4567" in output and "accuracy  50.0%" in output and "input wait 1.0%" in output
    assert progress.history.steps == [1, 2, 3, 4, 5]
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)  # rich stops the thread of its bar, and does not wait for its end


@pytest.mark.parametrize("num_wrong", [0, 3, 60])
def test_picture_of_any_number_of_mistakes(tmp_path, num_wrong):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 60)
    digits = Digits(rng.random((60, 8, 8, 1), np.float32), labels)
    predictions = np.where(np.arange(60) < num_wrong, (labels + 1) % 10, labels)
    history = History([1, 2], [1.0, 0.0], [0.1, 0.2], [], [], resumed_at=1)
    shares = {f"CPU:{i}": 10 for i in range(num_wrong // 10 + 3)}
    draw_picture(tmp_path / "demo.png", "AStrategy", history, shares, digits, predictions)
    assert size_of_png(tmp_path / "demo.png")[0] > 1000
