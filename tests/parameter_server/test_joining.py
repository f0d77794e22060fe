"""Tasks in processes of their own: they join, one joins later, and the coordinator is started again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

pytest.importorskip("ray")

from replicax.launch import free_ports

PROGRAM = Path(__file__).parent / "joined.py"
GROUP = "REPLICAX_TEST_GROUP"


class Process:
    """A task, with the results that it has printed."""

    def __init__(self, cluster, job, index, folder, last, group):
        task = {"type": job, "index": index}
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
            "JAX_PLATFORMS": "cpu",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            GROUP: group,
        }
        for name in ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC", "RAY_ADDRESS", "XLA_FLAGS"):
            environment.pop(name, None)
        command = [sys.executable, str(PROGRAM), str(folder), str(last)]
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        self.lines.extend(self._process.stdout)

    @property
    def results(self):
        return [json.loads(x.removeprefix("RESULT ")) for x in list(self.lines) if x.startswith("RESULT ")]

    def wait_for(self, condition, seconds=300):
        """The first result that fulfils a condition."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for result in self.results:
                if condition(result):
                    return result
            assert self._process.poll() is None, "".join(self.lines)
            time.sleep(0.1)
        raise AssertionError("".join(self.lines))

    def wait(self, seconds=300):
        assert self._process.wait(seconds) == 0, "".join(self.lines)

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()


def members(group):
    """The processes that have inherited the mark of this test."""
    mark, found = f"{GROUP}={group}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
    return found


@pytest.mark.timeout(1200)
def test_tasks_join_and_a_coordinator_that_is_started_again_continues(tmp_path):
    group, ports = uuid.uuid4().hex, free_ports(4)
    addresses = [f"localhost:{port}" for port in ports]
    cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:3]}
    larger = {**cluster, "worker": addresses[2:]}
    processes = []

    def start(cluster, job, index, last=10_000):
        processes.append(Process(cluster, job, index, tmp_path, last, group))
        return processes[-1]

    try:
        start(cluster, "ps", 0)
        start(cluster, "worker", 0)
        chief = start(cluster, "chief", 0)
        assert chief.wait_for(lambda result: result.get("step") == 3)["count"] == 6.0
        start(larger, "worker", 1)
        joined = chief.wait_for(lambda result: 1 in result.get("workers", ()))
        assert joined["count"] == 2.0 * joined["step"]
        chief.kill()
        saved = chief.results[-1]["step"]
        again = start(cluster, "chief", 0, last=saved + 5)
        again.wait(seconds=300)
        first, *others = again.results
        assert first["first"] in (saved, saved + 1)
        assert others[-1] == {**others[-1], "step": saved + 5, "count": 2.0 * (saved + 5)}
    finally:
        for process in processes:
            process.kill()
    deadline = time.monotonic() + 20
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members(group) == []
