"""Workers are killed while they train; `launch` restarts all; the losses are those of an undisturbed run.

`python -m tests.multiprocess.restarts 50` does it 50 times, at random times.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.multiprocess.restarted import NUM_STEPS

ROOT = Path(__file__).parents[2]


def read(path):
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(int(step), float(loss), int(replicas)) for step, loss, replicas in lines]


def test_losses_are_those_of_an_undisturbed_run_also_with_fewer_workers(tmp_path):
    command = [sys.executable, "-m", "replicax", "launch", "--workers", "2", "--max-restarts", "3"]
    command += ["--min-workers", "1", "--log-dir", str(tmp_path / "logs")]
    command += ["-m", "tests.multiprocess.restarted", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    expected = {step: loss for step, loss, _ in read(tmp_path / "expected")}
    found = read(tmp_path / "losses")
    assert len(expected) == NUM_STEPS and {step for step, _, _ in found} == set(expected)
    two = [(step, loss) for step, loss, replicas in found if replicas == 2]
    assert two == [(step, expected[step]) for step, _ in two]  # exactly
    one = [(step, loss) for step, loss, replicas in found if replicas == 1]
    assert one  # rank 0 died twice in a row
    for step, loss in one:
        assert loss == pytest.approx(expected[step], rel=1e-5)
