"""The coordinator: a process beside rank 0 that runs the hub and JAX's coordination service.

It is separate from rank 0 because it must outlive it. If the service died with rank 0, JAX would terminate
all other workers at once, before they could report why. The coordinator exits after the last worker.

It starts in a fifth of a second because it imports only jaxlib, not JAX; rank 0, which has JAX, passes the
name of jaxlib's function. Its arguments are one JSON object on the command line. It prints one line,
{"ok": true} or {"error": ...}, and reads nothing from stdin: EOF means that rank 0 has exited.
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

_PORT_SECONDS = 2.0  # how long processes of an earlier run may still hold the port
_services: list[Any] = []  # keeps JAX's service alive


def main() -> None:
    """Let the workers join, and watch them until the last one has exited."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C in a terminal is meant for the workers
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
    )  # whoever reads rank 0's output must not wait for us to close it

    def start_service() -> str:
        module, name = arguments["service_function"]
        make = getattr(importlib.import_module(module), name)
        bound = listener.getsockname()[0]
        return _start_service(make, host, bound, len(arguments["tasks"]), arguments["heartbeat_seconds"])

    Hub(listener, sys.stdin.fileno(), arguments["tasks"], arguments["stuck_seconds"], start_service).serve()
    os._exit(0)  # skip the service's shutdown, which would log errors


def _listen(host: str, port: int) -> socket.socket:
    """Listen at the address if it belongs to this machine, otherwise at all of its addresses."""
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
            ):  # the address of a router or a service in front of this machine
                raise
    return socket.create_server(("", port), backlog=1024)


def _is_unreachable(host: str, resolved: str) -> bool:
    """Whether the machine's own name resolves to a loopback address, as on some systems."""
    is_loopback = ipaddress.ip_address(resolved.partition("%")[0]).is_loopback
    return is_loopback and host not in ("localhost", resolved)


def _start_service(make: Any, host: str, bound: str, num_tasks: int, heartbeat_seconds: float) -> str:
    """Start JAX's coordination service at a free port; returns its address for the workers."""
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.create_server((bound, 0), family=family) as probe:
        port = probe.getsockname()[1]
    # A recoverable service does not propagate failures and has no shutdown barrier. Without this, JAX would
    # terminate the other processes without a message.
    _services.append(
        make(
            f"{_add_brackets(bound)}:{port}",
            num_tasks,
            heartbeat_timeout=max(1, round(heartbeat_seconds)),
            recoverable=True,
        )
    )
    return f"{_add_brackets(host)}:{port}"


def _add_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
