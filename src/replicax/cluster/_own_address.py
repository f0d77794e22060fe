"""Finds this machine's address in a list of addresses."""

from __future__ import annotations

import socket
from collections.abc import Sequence

__all__ = ["index_of_own_address"]


def index_of_own_address(addresses: Sequence[str]) -> int | None:
    """The index of the address 'host:port' whose host is this machine; None if no host is.

    >>> from replicax.cluster._own_address import index_of_own_address
    >>> index_of_own_address(["192.0.2.1:8470", "127.0.0.1:8470"])
    1
    """
    for index, address in enumerate(addresses):
        if _is_own(address.rpartition(":")[0].strip("[]")):
            return index
    return None


def _is_own(host: str) -> bool:
    """Whether a socket can be bound to the address, which then is this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as bound:
            bound.bind((host, 0))
        return True
    except OSError:
        return False
