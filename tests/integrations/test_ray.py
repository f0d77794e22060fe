"""Workers on a local Ray cluster of two CPUs, in a process of its own (`ray_program.py`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicax.errors import WorkerLostError

pytest.importorskip("ray")

PROGRAM = Path(__file__).parent / "ray_program.py"
LIMIT_SECONDS = 280


def play(tmp_path_factory, *scenarios):
    """What the program prints about each scenario."""
    folder = tmp_path_factory.mktemp("ray")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux, too: listen on loopback only
    }
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "PJRT_NPROC"):
        environment.pop(name, None)
    command = [sys.executable, str(PROGRAM), str(folder), *scenarios]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    lines = [
        line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")
    ]
    assert done.returncode == 0, done.stdout + done.stderr
    return {entry["scenario"]: entry["result"] for entry in map(json.loads, lines)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return play(tmp_path_factory, "recover", "name_the_rank", "refuse", "survivors")


def check_two_workers(results, restart):
    assert [result["rank"] for result in results] == [0, 1]
    assert [result["total"] for result in results] == [3.0, 3.0]
    assert results[0]["addresses"] == results[1]["addresses"]
    assert results[0]["addresses"][0].startswith("127.0.0.1:")
    assert {result["restart"] for result in results} == {restart}


def test_a_killed_worker_and_fewer_than_were_asked_for(results):
    """Two of three fit, all start again, and arrays come back as NumPy arrays in the order of the ranks."""
    check_two_workers(results["recover"], restart="1")
    assert {result["kind"] for result in results["recover"]} == {"ndarray"}


def test_the_rank_that_failed_is_named_with_its_traceback(results):
    message, cause = results["name_the_rank"]["message"], results["name_the_rank"]["cause"]
    assert message.startswith("Rank 1 of 2 failed (failure 1, with max_failures=0): it raised ValueError.")
    assert 'raise ValueError("no such file: weights.npz")' in message
    assert "_worker.py" not in message
    assert cause == "ValueError('no such file: weights.npz')"


def test_what_can_not_be_placed(results):
    too_large, too_many, negative = results["refuse"]
    assert too_large.startswith("ClusterTimeoutError: Ray could not place 2 workers with {'CPU': 3} each")
    assert "'CPU': 2.0" in too_large and "placement_timeout_seconds" in too_large
    assert too_many == (
        "ClusterError: ray.run got num_workers=2 and min_workers=4. Pass 1 <= min_workers <= num_workers."
    )
    assert negative.startswith("ClusterError: ray.run got max_failures=-1.")


def test_no_worker_is_left_behind(results):
    assert results["survivors"]["alive"] == []
    assert results["survivors"]["started"] >= 5


def test_the_cause_among_several_failures():
    """A process that ended comes before an error of the user; errors about other workers come last."""
    from replicax.integrations.ray._failure import Failure, Raised, choose_cause

    lost = Failure(0, Raised(WorkerLostError("worker 2 has died"), "traceback 0"))
    wrong = Failure(1, Raised(ValueError("no such file"), "traceback 1"))
    ended = Failure(2, RuntimeError("the actor died"))
    assert choose_cause([lost, wrong, ended]) is ended
    assert choose_cause([lost, wrong]) is wrong
    assert choose_cause([lost]) is lost
    assert str(wrong) == "it raised ValueError.\n\ntraceback 1"
    assert str(ended) == "its process died without a result.\n\nthe actor died"


class _StaysHomeError(Exception):
    def __init__(self, one, two):
        super().__init__(one + two)


def test_an_exception_that_can_not_travel():
    """It can be pickled, but not unpickled."""
    from replicax.integrations.ray._failure import Raised

    try:
        raise _StaysHomeError("a", "b")
    except Exception as error:
        raised = Raised.catch(error)
    assert type(raised.error) is RuntimeError and "_StaysHomeError: ab" in str(raised.error)
    assert raised.traceback.endswith("_StaysHomeError: ab\n")


@pytest.mark.long
def test_a_strategy_in_ray_train_finds_its_workers(tmp_path_factory):
    pytest.importorskip("pyarrow", reason="Ray Train is not installed")
    pytest.importorskip("pandas", reason="Ray Train is not installed")
    check_two_workers(play(tmp_path_factory, "in_ray_train")["in_ray_train"], restart="0")
