"""`MultiWorkerMirroredStrategy` in two real processes that know each other from TF_CONFIG alone."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.multiprocess.launch import launch
from tests.multiprocess.multi_worker import ADDRESSES, FOLDER, OWN_FOLDERS, train

import replicax as rx

PROGRAM = Path(__file__).with_name("multi_worker.py")


def two_addresses():
    with socket.socket() as first, socket.socket() as second:
        first.bind(("localhost", 0))
        second.bind(("localhost", 0))
        return [f"localhost:{probe.getsockname()[1]}" for probe in (first, second)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    """The results that each of two workers printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OWN_FOLDERS, str(tmp_path_factory.mktemp("own_folders")))
        patch.setenv(ADDRESSES, " ".join(two_addresses()))
        patch.setenv(FOLDER, str(folder))
        printed = launch(PROGRAM, num_processes=2)
    lines = [next(x for x in text.splitlines() if x.startswith("found ")) for text in printed]
    return [json.loads(line.removeprefix("found ")) for line in lines]


def test_each_worker_has_its_replica(found):
    assert [worker["replicas"] for worker in found] == [2, 2]
    assert [worker["process"] for worker in found] == [0, 1]
    assert [worker["ids"] for worker in found] == [[0], [1]]
    assert [worker["worker_devices"] for worker in found] == [["CPU:0"], ["CPU:0"]]


def test_each_worker_gets_its_rows_of_a_batch_that_all_workers_make(found):
    first, second = (worker["host_batches"] for worker in found)
    assert first["parts"] + second["parts"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert first["masks"] + second["masks"] == [[True, True], [True, True], [True, False], [True, False]]
    assert first["uneven"] + second["uneven"] == [[0, 1], [2, 3], [4], [5]]
    assert first["means"] == second["means"] == [7.0, 5.0]


def test_the_chief_alone_writes_a_checkpoint(found, folder):
    assert [worker["chief"] for worker in found] == [[True, True], [False, False]]
    assert [path.name for path in folder.iterdir()] == ["0"]
    assert [worker["restored"] for worker in found] == [True, True]


def test_workers_of_a_tensorflow_program_may_save_in_folders_of_their_own(found):
    assert [worker["own folders"] for worker in found] == [[3.0, "ckpt-2", ["chief"]]] * 2


def test_the_chief_decides_initial_values(found):
    assert [worker["initial"] for worker in found] == [10.0, 10.0]


def test_eager_steps_combine_the_values_of_all_workers(found):
    expected = {"sum": 3, "mean": 1.5, "all_reduce": [3], "variables": [3, 1], "gather": [1, 2]}
    assert [worker["eager"] for worker in found] == [expected, expected]


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]])
def test_training_gives_the_numbers_of_one_process(found, devices):
    alone, _ = train(rx.MirroredStrategy(devices))
    for worker in found:
        np.testing.assert_allclose(worker["trained"]["losses"], alone["losses"], rtol=1e-5)
        np.testing.assert_allclose(worker["trained"]["mean"], alone["mean"], rtol=1e-5)
        for name, value in alone["weights"].items():
            np.testing.assert_allclose(worker["trained"]["weights"][name], value, rtol=1e-5)
    assert found[0]["trained"] == found[1]["trained"]


def test_a_second_strategy_may_use_more_devices_of_the_same_workers(found):
    assert [worker["wider"] for worker in found] == [[4, 4.0], [4, 4.0]]


def test_another_cluster_than_the_one_that_jax_has_joined_is_refused(found):
    for worker, message in enumerate(worker["elsewhere"] for worker in found):
        assert message.startswith(f"ClusterError: JAX already runs as process {worker} of 2")
        assert "a:1" in message and "jax.distributed.initialize" in message


@pytest.mark.parametrize("task", [0, 1], ids=["chief", "worker"])
def test_a_worker_that_never_comes_is_an_error_within_the_timeout(task):
    addresses = two_addresses()
    mine = {ADDRESSES: " ".join(addresses), "REPLICAX_TEST_PROCESS": str(task), "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, str(PROGRAM), "2"],
        env=os.environ | mine,
        capture_output=True,
        text=True,
        timeout=240,  # without our timeout JAX would wait for 300 seconds
    )
    assert result.returncode == 0, result.stderr
    timeout, alone = result.stdout.splitlines()
    other = 1 - task
    assert timeout.startswith(
        f"timeout worker {task} ({addresses[task]}) timed out after 2 s at {addresses[0]}"
    )
    assert f"worker {other} ({addresses[other]})" in timeout
    assert alone == "alone 7.0"
