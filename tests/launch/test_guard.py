"""Processes that a guard starts do not outlive the process that has the guard."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replicax.launch import Devices, Guard, WorkerProcess, describe_status, free_ports, worker_environment

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_closing_the_guard_kills_what_still_runs():
    with Guard() as guard:
        process = guard.start(SLEEP, {})
    assert process.wait(60) == -signal.SIGKILL


def test_a_worker_can_be_signalled_and_killed():
    with Guard() as guard:
        first, second = (WorkerProcess(rank, guard, SLEEP, {}) for rank in range(2))
        assert first.poll() is None
        first.send(signal.SIGTERM)
        assert second.kill() == -signal.SIGKILL
        assert first.kill() in (-signal.SIGTERM, -signal.SIGKILL)
        first.send(signal.SIGTERM)  # it has ended: does nothing
        assert describe_status(second.kill()) == "was killed by SIGKILL"
        assert first.seconds == first.seconds


def test_a_command_that_does_not_exist_fails():
    with Guard() as guard:
        worker = WorkerProcess(0, guard, ["/does/not/exist"], {}, stderr=-3)
        assert worker._process.wait(60) == 1
        assert worker.poll() == 1


@pytest.mark.parametrize("flags", ["", "--xla_a=1 --xla_force_host_platform_device_count=8 --xla_b=2"])
def test_devices_of_the_starting_process_are_not_those_of_workers(flags):
    inherited = {"PJRT_NPROC": "16", "JAX_NUM_CPU_DEVICES": "8", "HOME": "/", "XLA_FLAGS": flags}
    own = worker_environment(inherited, ["a:1"], 0, Devices(cpu_devices=3))
    assert "PJRT_NPROC" not in own and own["JAX_NUM_CPU_DEVICES"] == "3" and own["HOME"] == "/"
    assert own.get("XLA_FLAGS", "") == flags.replace("--xla_force_host_platform_device_count=8 ", "")
    assert '"num_accelerators": {"CPU": 3}' in own["TF_CONFIG"]


def test_ports_are_different_and_outside_of_the_range_for_outgoing_connections():
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(10000 <= port < 65536 for port in ports)


PARENT = """
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleep, stdout=subprocess.DEVNULL).pid)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_what_a_worker_started_may_outlive_it_until_the_worker_is_killed():
    with Guard() as guard:
        worker = WorkerProcess(0, guard, [sys.executable, "-c", PARENT], {}, stdout=subprocess.PIPE)
        with worker.stdout as output:
            child = int(output.read())
        worker._process.wait(60)
        assert worker.poll() == 0
        os.kill(child, 0)  # it exists
        worker.kill()
        wait_for_end(child)


def wait_for_end(pid):
    """Wait until there is no such process, or only its zombie."""
    deadline = time.monotonic() + 30
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.02)
