"""JSON messages over a TCP connection, one per line.

The coordinator imports this module without JAX, so it uses only the standard library.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from typing import Any, final

__all__ = ["Connection", "host_and_port"]

_CHUNK = 1 << 16
_SEND_SECONDS = 5.0


def host_and_port(address: str) -> tuple[str, int]:
    """Split 'host:port'; the host may be an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@final
class Connection:
    """One end of a connection. Any thread may send; only one may receive."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(_SEND_SECONDS)
        self._socket, self._received, self._lock = sock, b"", threading.Lock()
        self.heard = time.monotonic()
        """When the other end last sent something."""

    def fileno(self) -> int:
        """The file descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> bool:
        """Send `message`; returns whether the other end still accepts messages."""
        with self._lock:
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                return False
        return True

    def receive(self, timeout_seconds: float) -> list[dict[str, Any]] | None:
        """Wait for messages up to the timeout and return those that arrived; None at the end of the stream.

        Raises:
            ValueError: what arrived is not a JSON message.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(1000 * timeout_seconds):
            return []
        try:
            chunk = self._socket.recv(_CHUNK)
        except OSError:
            return None
        if not chunk:
            return None
        self.heard = time.monotonic()
        *lines, self._received = (self._received + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._socket.close()
