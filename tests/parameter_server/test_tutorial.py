"""TensorFlow's tutorial about parameter servers, with its own loop and with Keras; see `tutorial/`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("keras")

FOLDER = Path(__file__).parent / "tutorial"


def run(program, *arguments):
    """What the program prints."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    for name in ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC", "RAY_ADDRESS", "TF_CONFIG"):
        environment.pop(name, None)
    command = [sys.executable, str(FOLDER / program), *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.long
def test_the_custom_loop_learns():
    found = run("custom_loop.py")
    assert found["accuracies"][-1] > 0.95 and found["loss"] < 0.3
    assert (found["coordinator"], found["inline"]) == (1.0, 1.0)
    assert found["table"] == 2


@pytest.mark.long
def test_keras_fit_learns_and_saves(tmp_path):
    found = run("keras_fit.py", tmp_path)
    assert found["losses"][-1] < found["losses"][0] / 5
    assert found["iterations"] == 100
    assert "ckpt.weights.h5" in found["files"]
