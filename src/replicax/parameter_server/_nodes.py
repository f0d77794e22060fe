"""Processes that join a Ray cluster as tasks of a `ClusterSpec`: each starts a node of the cluster.

The node of a task offers a resource named after the task, and the task's actor requests it. So the actor
runs there, also after the process is restarted. The first node (the head) has the address of the chief, or
of ps 0 without a chief; the other addresses of the cluster are not used.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

from replicax.cluster import ClusterSpec
from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.launch import Guard
from replicax.parameter_server._ray import LOOPBACK, START_NODE, library, on_loopback

__all__ = ["Node", "Task", "await_tasks", "connect", "head_of", "resource_of", "start_node"]

_SECONDS_BETWEEN_REPORTS = 10.0

_SETTINGS = {
    # A node ends if its head does not come back within this time,
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    # or if another head has taken its place, which the node notices when it asks whether it still belongs.
    "RAY_raylet_liveness_self_check_interval_ms": "2000",
    # Ray's default is 15: on a busy machine, tasks would hardly run.
    "RAY_worker_niceness": "0",
}

Task = tuple[str, int]
"""A job and an index, such as ("ps", 0)."""

_logger = logging.getLogger("replicax")


def resource_of(task: Task) -> str:
    """The name of the resource that the node of a task offers."""
    return f"replicax_{task[0]}_{task[1]}"


def head_of(spec: ClusterSpec) -> Task:
    """The task whose address is that of the Ray cluster."""
    return "chief" if "chief" in spec.jobs else "ps", 0


def connect(address: str, seconds: float) -> None:
    """Connect to the Ray cluster at an address, as soon as it exists."""
    host, port = _parsed(address)
    deadline = time.monotonic() + seconds
    while not _is_listening(host, port):
        if time.monotonic() > deadline:
            raise ClusterTimeoutError(
                f"Found no Ray cluster at {address} within {seconds:g} s. That is the address of the "
                "chief, or of ps 0 if the cluster has no chief; its process must be started too."
            )
        time.sleep(0.2)
    _initialize(host, port)


def _initialize(host: str, port: int, **options: Any) -> None:
    with on_loopback() if host == LOOPBACK else contextlib.nullcontext():
        library().init(address=f"{host}:{port}", **options)


def await_tasks(tasks: Iterable[Task], seconds: float) -> None:
    """Wait until a process has joined for each of these tasks."""
    deadline = time.monotonic() + seconds
    report = time.monotonic() + _SECONDS_BETWEEN_REPORTS
    while missing := [f"{job} {index}" for job, index in tasks if not _is_there((job, index))]:
        if time.monotonic() > deadline:
            raise ClusterTimeoutError(
                f"{', '.join(missing)} did not join within {seconds:g} s. Their processes must run "
                "`tf.distribute.Server(cluster_spec, job_name=..., task_index=...).join()` with the same "
                "cluster. To let the strategy start its processes itself, pass `num_ps` and `num_workers` "
                "instead of a cluster."
            )
        if time.monotonic() > report:
            _logger.warning("Waiting for %s to join.", ", ".join(missing))
            report += _SECONDS_BETWEEN_REPORTS
        time.sleep(0.2)


def _is_there(task: Task) -> bool:
    return library().cluster_resources().get(resource_of(task), 0) > 0


@final
class Node:
    """A node of the Ray cluster, which offers tasks; it is the head if one of them is.

    A node has a folder of its own for its sockets and logs. In Ray's shared folder, two nodes that start at
    the same time can choose the same socket, and a coordinator may connect to the node of another task.

    Args:
        spec: the cluster.
        tasks: the tasks that run on the node.
        guard: ends the node's processes if this process dies.
    """

    def __init__(self, spec: ClusterSpec, tasks: Iterable[Task], guard: Guard) -> None:
        head, tasks = head_of(spec), list(tasks)
        self.name = ", ".join(f"{job} {index}" for job, index in tasks)
        self._host, self._port = _parsed(spec.task_address(*head))
        self._guard = guard
        prefix = "".join(f"{job}{index}_" for job, index in tasks[:1])
        self._folder = Path(tempfile.mkdtemp(prefix=f"replicax_{prefix}", dir=_ray_root()))
        self.log = self._folder / "node.log"
        """What the node has printed."""
        own = self._host if head in tasks else _parsed(spec.task_address(*tasks[0]))[0]
        place = ["--head", f"--port={self._port}", "--include-dashboard=false"]
        if head not in tasks:
            place = [f"--address={self._host}:{self._port}"]
        if own == LOOPBACK:  # other nodes on this machine use Ray's range of ports, too
            place += ["--min-worker-port=0", "--max-worker-port=0"]
        resources = json.dumps({resource_of(task): 1 for task in tasks})
        command = [sys.executable, "-c", START_NODE, "start", "--block", "--disable-usage-stats"]
        place += [f"--node-ip-address={own}", f"--temp-dir={self._folder}", f"--resources={resources}"]
        with self.log.open("wb") as output:
            self._process = guard.start([*command, *place], _environment(), output, subprocess.STDOUT)

    @property
    def has_started(self) -> bool:
        """Whether Ray runs; it writes the cluster's address to a file when it does."""
        return (self._folder / "ray_current_cluster").exists()

    @property
    def has_ended(self) -> bool:
        """Whether the node has ended on its own."""
        return self._process.poll() is not None

    def connect(self) -> None:
        """Connect this process to the cluster, through this node."""
        _initialize(self._host, self._port, _temp_dir=str(self._folder))

    def wait(self) -> None:
        """Wait until the node ends."""
        self._process.wait()

    def end(self) -> int:
        """End the node and all its processes, which may outlive it for a while; returns its status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._guard.forget(self._process.pid)
        return status

    def last_words(self) -> str:
        """The last line that the node has printed."""
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def start_node(spec: ClusterSpec, tasks: Sequence[Task], guard: Guard, seconds: float) -> Node:
    """Start a node, and wait until it runs.

    A node can fail to start while the previous cluster at the same address ends, so it is started again.
    """
    deadline = time.monotonic() + seconds
    if head_of(spec) in tasks:
        _await_free(spec.task_address(*head_of(spec)), seconds)
    reason = ""
    while True:
        node = Node(spec, tasks, guard)
        try:
            while not (node.has_started or node.has_ended or time.monotonic() > deadline):
                time.sleep(0.1)
            if node.has_started and not node.has_ended:
                return node
            if node.has_ended or not reason:
                reason = f"{node.last_words()} (see {node.log})"
        except BaseException:
            node.end()
            raise
        node.end()
        message = f"The Ray node of {node.name} did not start: {reason}."
        if time.monotonic() > deadline:
            raise ClusterTimeoutError(f"{message} Gave up after {seconds:g} s.")
        _logger.warning("%s Trying again.", message)
        time.sleep(1.0)


def _await_free(address: str, seconds: float) -> None:
    """Wait until no other program, such as the head of an earlier cluster, listens at an address."""
    host, port = _parsed(address)
    deadline, is_reported = time.monotonic() + seconds, False
    while _is_listening(host, port):
        if time.monotonic() > deadline:
            raise ClusterTimeoutError(
                f"For {seconds:g} s, another program has listened at {address}, the address of the "
                "cluster. Stop it, or choose another port for the chief."
            )
        if not is_reported:
            _logger.warning("Another program listens at %s. Waiting until it has ended.", address)
            is_reported = True
        time.sleep(0.2)


def _ray_root() -> str | None:
    """Where Ray keeps its files; paths of sockets must be short, and `TMPDIR` is long on a Mac."""
    return os.environ.get("RAY_TMPDIR") or ("/tmp" if os.path.isdir("/tmp") else None)


def _environment() -> dict[str, str]:
    return {**_SETTINGS, **{key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}}


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(
            f"The address {address!r} of a task has no port. Write it as 'host:port', such as 'host0:2222'."
        )
    return LOOPBACK if host == "localhost" else host, int(port)


def _is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
