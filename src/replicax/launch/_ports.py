"""Free ports on the loopback interface.

The kernel assigns ports of its ephemeral range to outgoing connections, so a port that is free now may be
in use a moment later. So we choose below that range, at random, so that two launchers rarely choose the
same.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

from replicax.errors import ClusterError

__all__ = ["LOOPBACK", "free_ports", "local_addresses"]

LOOPBACK = "127.0.0.1"
_LOWEST_PORT = 10000
_USUAL_EPHEMERAL = 32768
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES_PER_PORT = 1000


def free_ports(num_ports: int) -> list[int]:
    """Different ports that no program on this machine uses.

    >>> from replicax.launch import free_ports
    >>> len(set(free_ports(3)))
    3
    """
    found: list[int] = []
    for port in _candidates(num_ports * _TRIES_PER_PORT):
        if len(found) == num_ports:
            return found
        if port not in found and _is_free(port):
            found.append(port)
    raise ClusterError(f"Found only {len(found)} free ports on {LOOPBACK}, but {num_ports} are needed.")


def local_addresses(num_workers: int) -> list[str]:
    """An address on the loopback interface for each worker."""
    return [f"{LOOPBACK}:{port}" for port in free_ports(num_workers)]


def _candidates(count: int) -> Iterator[int]:
    # Not the global generator: a program that seeds it would always draw the same ports.
    generator, end = random.SystemRandom(), _first_ephemeral_port()
    return (generator.randrange(_LOWEST_PORT, end) for _ in range(count))


def _first_ephemeral_port() -> int:
    try:
        first = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_EPHEMERAL
    return first if first > _LOWEST_PORT + 1000 else _USUAL_EPHEMERAL


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
