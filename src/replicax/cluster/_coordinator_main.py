"""The coordinator: a process beside the first worker, with the hub and JAX's coordination service.

It is not part of the first worker because it must outlive it. If the service ended with the first worker,
JAX would end all others at the same moment, before they could report why. The process ends with the last
worker.

It starts in a fifth of a second because it imports only jaxlib, not JAX. Its arguments are one JSON
object on the command line. It prints one line, {"ok": true} or {"error": ...}, and reads nothing: the end
of its input is the end of the first worker.
"""

from __future__ import annotations

import errno
import importlib
import ipaddress
import json
import os
import signal
import socket
import sys
import time
from typing import Any

from replicax.cluster._hub import Hub
from replicax.cluster._wire import host_and_port

__all__ = ["main"]

_PORT_SECONDS = 2.0  # for the processes of an earlier run to end
_services: list[Any] = []  # JAX's service ends with this reference


def main() -> None:
    """Bring the workers together, and watch over them until the last one has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals of a terminal are for the workers
    arguments = json.loads(sys.argv[1])
    host, port = host_and_port(arguments["address"])
    try:
        listener = _listen(host, port)
    except OSError as error:
        print(json.dumps({"error": error.strerror, "in_use": error.errno == errno.EADDRINUSE}), flush=True)
        return
    print(json.dumps({"ok": True}), flush=True)
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), 1
    )  # a reader of the first worker's pipes must not wait for us

    def start_service() -> str:
        bound = listener.getsockname()[0]
        return _start_service(host, bound, len(arguments["tasks"]), arguments["heartbeat_seconds"])

    Hub(listener, sys.stdin.fileno(), arguments["tasks"], arguments["stuck_seconds"], start_service).serve()
    os._exit(0)  # the service would log that it ends


def _listen(host: str, port: int) -> socket.socket:
    """Listen at the address if it is one of this machine, or else at all of its addresses."""
    deadline = time.monotonic() + _PORT_SECONDS
    while True:
        try:
            return _listen_once(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _listen_once(host: str, port: int) -> socket.socket:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if not _is_unreachable(host, str(address[0])):
        try:
            return socket.create_server(address[:2], family=family, backlog=1024)
        except OSError as error:
            if (
                error.errno != errno.EADDRNOTAVAIL
            ):  # an address of a router or a service before this machine
                raise
    return socket.create_server(("", port), backlog=1024)


def _is_unreachable(host: str, resolved: str) -> bool:
    """Whether a machine's name is a loopback address on that machine, as some systems have it."""
    is_loopback = ipaddress.ip_address(resolved.partition("%")[0]).is_loopback
    return is_loopback and host not in ("localhost", resolved)


def _start_service(host: str, bound: str, num_tasks: int, heartbeat_seconds: float) -> str:
    """Start JAX's coordination service beside the hub, at any free port; its address for the workers."""
    # Not through replicax._jax, which imports JAX.
    service: Any = importlib.import_module("jaxlib._jax").get_distributed_runtime_service
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.create_server((bound, 0), family=family) as probe:
        port = probe.getsockname()[1]
    # A recoverable service does not propagate failures, and no process waits for others at the end.
    # Otherwise JAX would end the other processes without a message.
    _services.append(
        service(
            f"{_bracketed(bound)}:{port}",
            num_tasks,
            heartbeat_timeout=max(1, round(heartbeat_seconds)),
            recoverable=True,
        )
    )
    return f"{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
