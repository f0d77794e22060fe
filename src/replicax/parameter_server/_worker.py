"""The actor that one worker runs in: it calls the functions that the coordinator schedules."""

from __future__ import annotations

import os
import queue
from collections.abc import Sequence
from typing import Any, final

import jax
import numpy as np

from replicax.cluster import Raised
from replicax.parameter_server import _references
from replicax.parameter_server._handles import ServerHandle
from replicax.parameter_server._pickling import dumps, loads
from replicax.parameter_server._ray import compute_with
from replicax.parameter_server._servers import RayServers
from replicax.parameter_server._strategy import ParameterServerStrategy
from replicax.values import DistributedValues, map_leaves

__all__ = ["Worker", "get_current_worker_index"]

_index: int | None = None


def get_current_worker_index() -> int | None:
    """The index of the worker that a scheduled function runs on; None outside of scheduled functions.

    >>> rx.get_current_worker_index() is None
    True
    """
    return _index


@final
class Worker:
    """One worker."""

    def __init__(
        self, cluster: str, index: int, server_names: Sequence[str], num_threads: int | None = None
    ) -> None:
        global _index
        compute_with(num_threads)
        _index = index
        self._requests: queue.Queue[bytes] = queue.Queue()
        self._answers: queue.Queue[Exception | None] = queue.Queue()
        handles = [ServerHandle(name, i) for i, name in enumerate(server_names)]
        self._servers = RayServers(cluster, handles, self._request_build)
        self._strategy = ParameterServerStrategy.of_worker(self._servers)
        self._member = _references.Member(self._strategy, is_worker=True)
        self._functions: dict[str, Any] = {}
        _references.join(cluster, self._member)

    def ping(self) -> int:
        """The process id; answered while a function runs."""
        return os.getpid()

    def run(self, function: str | bytes, arguments: bytes) -> Any:
        """Call a function, given by its key or pickled; returns its result or what it `Raised`."""
        try:
            fn = self._functions[function] if isinstance(function, str) else loads(function)
            args, kwargs = loads(arguments)
            result = fn(*args, **kwargs)
            self._servers.wait_for_pushes()
            return map_leaves(_on_host, result)
        except Exception as error:
            return Raised.catch(error)

    def learn(self, key: str, function: bytes) -> None:
        """Keep a function that is called often."""
        self._functions[key] = loads(function)

    def hold(self, key: str, function: bytes, arguments: bytes) -> Raised | None:
        """Call a function and keep what it returns, as this worker's object of a `PerWorkerValues`."""
        try:
            args, kwargs = loads(arguments)
            self._member.resources[key] = loads(function)(*args, **kwargs)
            self._servers.wait_for_pushes()
        except Exception as error:
            return Raised.catch(error)
        return None

    # Requests to the coordinator.

    def listen(self, seconds: float) -> bytes | None:
        """The next optimizer that the coordinator must build; None if none is needed for some time."""
        try:
            return self._requests.get(timeout=seconds)
        except queue.Empty:
            return None

    def answer(self, error: Exception | None) -> None:
        """The coordinator has built the optimizer, or could not."""
        self._answers.put(error)

    def _request_build(self, optimizer: Any, variables: Any) -> None:
        self._requests.put(dumps((optimizer, variables)))
        error = self._answers.get()
        if error is not None:
            raise error


def _on_host(leaf: Any) -> Any:
    """Arrays are sent as NumPy arrays, and per-replica values as tuples of them."""
    if isinstance(leaf, DistributedValues):
        return tuple(_on_host(part) for part in leaf.values)
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
