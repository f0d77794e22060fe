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
import time
from collections.abc import Iterable
from typing import Any

from replicax.cluster import ClusterSpec
from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.launch import Guard
from replicax.parameter_server._ray import LOOPBACK, START_NODE, library, on_loopback

__all__ = ["Task", "await_tasks", "connect", "end_node", "head_of", "resource_of", "run_node"]

_SECONDS_BETWEEN_REPORTS = 10.0

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
    with on_loopback() if host == LOOPBACK else contextlib.nullcontext():
        library().init(address=f"{host}:{port}")


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


def run_node(spec: ClusterSpec, tasks: Iterable[Task], guard: Guard) -> subprocess.Popen[bytes]:
    """Start a node that offers tasks to the cluster; it is the head if one of them is."""
    head, tasks = head_of(spec), list(tasks)
    host, port = _parsed(spec.task_address(*head))
    if head in tasks:
        place = ["--head", f"--port={port}", f"--node-ip-address={host}", "--include-dashboard=false"]
    else:
        own = _parsed(spec.task_address(*tasks[0]))[0] if tasks else host
        place = [f"--address={host}:{port}", f"--node-ip-address={own}"]
    resources = json.dumps({resource_of(task): 1 for task in tasks})
    command = [sys.executable, "-c", START_NODE, "start", "--block", "--disable-usage-stats"]
    # A node whose head is gone ends after this time, and is started again.
    environment = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10", **_environment()}
    output: Any = subprocess.DEVNULL
    return guard.start([*command, *place, f"--resources={resources}"], environment, output, output)


def end_node(node: subprocess.Popen[bytes], guard: Guard) -> int:
    """End a node and all its processes, which may outlive it for a while; returns its status."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    status = node.wait()
    guard.forget(node.pid)
    return status


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}


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
