"""Two servers and two workers on a local Ray cluster, in a process of its own (`program.py`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

PROGRAM = Path(__file__).parent / "program.py"
LIMIT_SECONDS = 280


def play(tmp_path_factory, *scenarios):
    """What the program prints about each scenario."""
    folder = tmp_path_factory.mktemp("parameter_server")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    for name in ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC", "RAY_ADDRESS", "TF_CONFIG"):
        environment.pop(name, None)
    command = [sys.executable, str(PROGRAM), str(folder), *scenarios]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [x.removeprefix("RESULT ") for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    return {entry["scenario"]: entry["result"] for entry in map(json.loads, lines)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return play(
        tmp_path_factory,
        "as_plain_optax",
        "digits",
        "embedding",
        "staleness",
        "failing_function",
        "mistakes",
        "keras_fit",
        "faults",
        "positions",
        "survivors",
    )


def test_steps_equal_those_of_plain_optax(results):
    """Step by step, with a divided matrix, slots and a metric on the servers; checkpoints fit both ways."""
    found = results["as_plain_optax"]
    assert found["off"] < 1e-6
    assert (found["parts"], found["servers"]) == (2, [0, 1])
    assert found["niceness"] == os.nice(0)
    assert (found["count"], found["iterations"], found["seen"]) == (5, 5, 160.0)
    assert found["mean"]
    assert found["checkpoint"] == [True, 18.0]


def test_two_workers_learn_digits_without_waiting_for_each_other(results):
    found = results["digits"]
    assert found["accuracy"] >= 0.97
    assert found["updates"] == [300]
    assert found["losses"][1] < found["losses"][0] / 5


def test_steps_move_only_the_rows_that_they_look_up(results):
    found = results["embedding"]
    assert found["off"] < 1e-6 and found["parts"] == 2
    assert found["bytes"] < 6 * 1000 < 1000 * 8 * 4


def test_max_staleness_limits_staleness(results):
    found = results["staleness"]
    assert found["total"] == 120.0
    assert max(found["staleness"]["0"]) == 0
    assert max(found["staleness"]["1"]) <= 1


def test_an_error_is_raised_at_the_next_call_and_cancels_what_waits(results):
    found = results["failing_function"]
    message, note = found["error"]
    assert message == "no such file: weights.npz"
    assert note.startswith("Raised in worker ") and 'raise ValueError("no such file' in note
    assert (found["failing"], found["running"]) == ("ABORTED", ["READY", "READY"])
    assert found["cancelled"] >= 28
    assert "was cancelled: a function that was scheduled before it raised an error" in found["message"]
    assert found["after"] is True and found["done"] is True


def test_mistakes_are_explained(results):
    found = results["mistakes"]
    assert found["global norm"].startswith("VariableError: The transformation of <rx.Optimizer")
    assert "optax.clip_by_global_norm(1.0).update(gradients" in found["global norm"]
    assert "does not update the elements of 'table:0' one by one" in found["divided"]
    assert "Create variables in the coordinator" in found["creates"]
    assert "Pass `value.fetch()`" in found["remote value"]
    assert "has a ClusterCoordinator already" in found["second"]
    assert "takes an rx.ParameterServerStrategy, got OneDeviceStrategy" in found["strategy"]
    assert "write `next(iterator)` in `step`" in found["next"]


def test_keras_fit_equals_that_of_plain_keras(results):
    """One step at a time; then with a dataset in each worker. Checkpoints fit a mirrored model too."""
    found = results["keras_fit"]
    assert found["off"] < 1e-5
    assert found["iterations"] == 13
    assert found["history"]["loss"][1] < found["history"]["loss"][0]
    assert found["same"] is True
    assert found["back"] == 6 * 16 + 16 + 16 * 3 + 3


@pytest.mark.long
def test_keras_evaluates_on_workers_and_predicts_here(tmp_path_factory):
    found = play(tmp_path_factory, "keras_more")["keras_more"]
    assert max(found["off"]) < 1e-5
    assert found["history"] == ["loss", "mae", "val_loss", "val_mae"]
    assert "Pass `steps_per_epoch`" in found["messages"]["steps"]
    assert "Use `fit` and `evaluate`" in found["messages"]["on batch"]
    assert "dataset.repeat()" in found["messages"]["ends"]


def test_positions_of_workers_are_saved_and_workers_join(results):
    found = results["positions"]
    position = {0: 0, 1: 0}
    for index, rows in found["seen"]:
        assert rows == [position[index], position[index] + 1]
        position[index] += 2
    assert found["more"] == 6
    assert sorted(index for index, _ in found["again"]) == [0, 1]
    assert all(rows == [position[index], position[index] + 1] for index, rows in found["again"])
    assert 2 in found["workers"]


@pytest.mark.parametrize("fault", ["kill worker, pull", "kill ps, save"])
def test_training_goes_on_after_a_fault(results, fault):
    """`python -m tests.parameter_server.faults` has all of them, and their times."""
    assert results["faults"][fault] == []


def test_no_process_is_left_behind(results):
    assert results["survivors"] == {"started": 5, "alive": [], "address": "127.0.0.1"}
