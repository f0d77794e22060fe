"""Starts the coordinator beside rank 0, and joins it from every worker.

The coordinator is a process of its own (`_coordinator_main.py`). `start_coordinator` launches it from the
first worker; `Rendezvous.join` connects a worker to it and waits until all workers are there.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from replicax._jax import service_function
from replicax.cluster._hub import GREETING
from replicax.cluster._options import ClusterOptions
from replicax.cluster._wire import Connection, host_and_port
from replicax.errors import ClusterError, ClusterTimeoutError

__all__ = ["Rendezvous", "start_coordinator", "stop_coordinator"]

_RETRY_SECONDS = 0.05
_GREETING_SECONDS = 10.0

# Runs `_coordinator_main` without `replicax/__init__.py`, which imports JAX.
_PROGRAM = """
import sys, types
for name, folder in ("replicax", {package!r}), ("replicax.cluster", {cluster!r}):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [folder]
from replicax.cluster._coordinator_main import main
main()
"""
_process: subprocess.Popen[bytes] | None = None


def start_coordinator(address: str, tasks: Sequence[str], options: ClusterOptions) -> None:
    """Start the coordinator, which listens at `address` and exits after the last worker.

    Raises:
        ClusterError: the port is in use, or the address can't be used.
    """
    global _process
    arguments = {
        "address": address,
        "tasks": list(tasks),
        "stuck_seconds": options.stuck_timeout_seconds,
        "heartbeat_seconds": options.heartbeat_timeout_seconds,
        "service_function": service_function(),
    }
    folder = Path(__file__).parent
    program = _PROGRAM.format(package=str(folder.parent), cluster=str(folder))
    process = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdin is not None and process.stdout is not None
    answer = json.loads(process.stdout.readline() or b'{"error": "the coordinator exited at once"}')
    process.stdout.close()
    if "error" in answer:
        process.stdin.close()
        process.wait()
        raise ClusterError(_explain_failed_start(address, answer))
    _process = process  # keeps its stdin open until this process exits


def stop_coordinator() -> subprocess.Popen[bytes] | None:
    """Tell the coordinator, if it runs, that this process gives up; it exits unless all have joined."""
    if _process is not None and _process.stdin is not None:
        _process.stdin.close()
    return _process


def _explain_failed_start(address: str, answer: dict[str, Any]) -> str:
    if answer.get("in_use"):
        return (
            f"The first worker can't listen at its address {address}: the port is in use. Choose a free "
            "port for it in the cluster of all workers, or end the process that uses it."
        )
    return (
        f"The first worker can't listen at its address {address}: {answer['error']}. The "
        "address must be 'host:port', where the host is a name or an address of the first worker's machine."
    )


@final
class Rendezvous:
    """Joins one worker to the cluster: it identifies itself and waits for the others."""

    def __init__(self, address: str, rank: int, tasks: Sequence[str], timeout_seconds: float) -> None:
        """Join the workers `tasks` at `address`, as the one with this rank."""
        self._address, self._rank, self._tasks = address, rank, list(tasks)
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._present: list[int] = []

    def join(self) -> tuple[Connection, str]:
        """Wait for all workers; returns the connection to the hub and the address of JAX's service.

        Raises:
            ClusterError: two workers have the same rank, or their clusters differ.
            ClusterTimeoutError: not all workers joined in time.
        """
        connection = self._connect()
        try:
            hello = {
                "rank": self._rank,
                "tasks": self._tasks,
                "pid": os.getpid(),
                "host": socket.gethostname(),
            }
            connection.send(hello)
            while True:
                for message in self._receive(connection):
                    if message["kind"] == "joined":
                        return connection, message["service"]
                    self._take(message)
                if time.monotonic() > self._deadline:
                    connection.send({"kind": "timed out"})  # the others need not wait for their timeouts
                    raise ClusterTimeoutError(self._describe_missing())
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> Connection:
        host, port = host_and_port(self._address)
        while True:
            try:
                connection = Connection(socket.create_connection((host, port), self._seconds_left()))
            except OSError as error:
                if time.monotonic() > self._deadline:
                    raise ClusterTimeoutError(self._describe_unreachable(error)) from error
            else:
                if self._is_hub(connection):
                    return connection
            time.sleep(_RETRY_SECONDS)

    def _seconds_left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def _is_hub(self, connection: Connection) -> bool:
        """Whether a hub answers; False if it hangs up, as one left over from an earlier run might."""
        try:
            messages = connection.receive(min(_GREETING_SECONDS, self._seconds_left()))
        except ValueError:
            messages = [{}]
        if messages is None and time.monotonic() < self._deadline:
            connection.close()
            return False
        if not messages or messages[0] != GREETING:
            connection.close()
            raise ClusterError(
                f"{self._name} expected the first worker at {self._address}, but another program listens "
                "there. Choose a free port for the first worker in the cluster of all workers."
            )
        return True

    def _receive(self, connection: Connection) -> list[dict[str, Any]]:
        messages = connection.receive(min(1.0, self._seconds_left()))
        if messages is None:
            raise ClusterError(
                f"{self._name} lost its connection to the first worker at {self._address} before all "
                "workers had joined. See the output of the first worker."
            )
        return messages

    def _take(self, message: dict[str, Any]) -> None:
        if message["kind"] == "refused":
            raise ClusterError(f"{self._name} can't join its cluster. {message['reason']}")
        if message["kind"] == "timed out":
            raise ClusterTimeoutError(self._describe_missing(f"{self._tasks[message['rank']]} timed out"))
        if message["kind"] == "present":
            self._present = message["ranks"]

    @property
    def _name(self) -> str:
        return self._tasks[self._rank]

    def _describe_unreachable(self, error: OSError) -> str:
        others = ", ".join(task for task in self._tasks if task != self._name)
        return (
            f"{self._name} timed out after {self._timeout_seconds:g} s at {self._address}, the address "
            f"of {self._tasks[0]}: nothing answers there ({error}). Check that it was started, that all "
            "workers have the same cluster, and that this machine can reach that address. The other "
            f"tasks: {others}."
        )

    def _describe_missing(self, who: str | None = None) -> str:
        missing = ", ".join(t for rank, t in enumerate(self._tasks) if rank not in self._present)
        who = who or f"{self._name} timed out after {self._timeout_seconds:g} s"
        return (
            f"{who} at {self._address}: these workers did not join: {missing}. Check that each of them was "
            "started, with the same cluster and its own task, and can reach that address."
        )
