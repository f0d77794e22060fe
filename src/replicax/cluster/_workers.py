"""`WorkersResolver`: the base of resolvers that know their rank, the world size and rank 0's address.

Most launchers tell a process no more than this, and JAX needs no more: all processes connect to rank 0. The
addresses of the others are then "unknown".
"""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from typing import Any

from replicax.cluster._resolver import ClusterResolver, master_url
from replicax.cluster._spec import ClusterSpec, integer
from replicax.errors import ClusterError, NotInClusterError

__all__ = [
    "UNKNOWN_ADDRESS",
    "WorkersResolver",
    "pad_addresses",
    "format_address",
    "read_number",
    "read_variable",
]

UNKNOWN_ADDRESS = "unknown"


class WorkersResolver(ClusterResolver):
    """A cluster of workers only. A subclass finds their addresses and the index of this process.

    Args:
        addresses: the addresses of all workers; only the first one has to be known.
        index: the index of this process.
        rpc_layer: the protocol of the URLs that `master` returns.

    Raises:
        ClusterError: the index exceeds the number of workers.
    """

    @abc.abstractmethod
    def __init__(self, addresses: Sequence[str], index: int, rpc_layer: str | None = None) -> None:
        if not 0 <= index < len(addresses):
            raise ClusterError(
                f"{type(self).__name__}: this process has the index {index}, but there are only "
                f"{len(addresses)} processes, numbered from 0."
            )
        self._spec = ClusterSpec({"worker": list(addresses)})
        self._task_type, self._task_id, self._rpc_layer = "worker", index, rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """The workers. Addresses that this process does not know are "unknown"."""
        return self._spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The address of a worker, by default the first, which all connect to.

        Raises:
            ClusterError: the worker does not exist.
        """
        address = self._spec.task_address(task_type or "worker", task_id or 0)
        return master_url(address, rpc_layer or self._rpc_layer)


def pad_addresses(address: str, num_workers: int) -> list[str]:
    """The addresses of all workers when only the first is known."""
    return [address, *[UNKNOWN_ADDRESS] * (num_workers - 1)]


def format_address(host: str, port: int | str) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def read_variable(name: str, meaning: str) -> str:
    """The environment variable `name`.

    Raises:
        NotInClusterError: it is not set; `meaning` says what that means and what to do.
    """
    value = os.environ.get(name)
    if not value:
        raise NotInClusterError(f"The environment variable {name} is not set: {meaning}")
    return value


def read_number(name: str, meaning: str) -> int:
    """The environment variable `name` as a number.

    Raises:
        NotInClusterError: it is not set.
        ClusterError: it is not a number.
    """
    value: Any = read_variable(name, meaning)
    number = integer(value)
    if number is None:
        raise ClusterError(f"The environment variable {name} must be a number, 0 or more; it is {value!r}.")
    return number
