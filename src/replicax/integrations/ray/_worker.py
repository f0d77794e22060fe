"""The actor that runs one worker. Its process exits with it, because JAX can't join a second cluster."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import numpy as np

from replicax.integrations.ray._failure import Raised
from replicax.integrations.ray._library import ray
from replicax.launch import free_ports

__all__ = ["Worker"]


@final
class Worker:
    """One worker: runs the training function when all workers are placed."""

    def node(self) -> str:
        """The id of the machine that this worker runs on."""
        return ray.get_runtime_context().get_node_id()

    def address(self, loopback: bool) -> str:
        """An address with a free port on this machine."""
        host = "127.0.0.1" if loopback else ray.util.get_node_ip_address()
        return f"{host}:{free_ports(1)[0]}"

    def run(self, train_fn: Callable[[], Any], addresses: Sequence[str], rank: int, restart: int) -> Any:
        """Call the training function as the worker with this rank; returns what it returned or raised."""
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
        os.environ["REPLICAX_RESTART_COUNT"] = str(restart)
        try:
            result = train_fn()
        except Exception as error:
            return Raised.catch(error)
        return jax.tree.map(_on_host, result)

    def leave(self) -> None:
        """Sign off, so that the other workers don't take the exit of this process for a failure."""
        with contextlib.suppress(RuntimeError):  # the result has been returned already
            jax.distributed.shutdown()


def _on_host(leaf: Any) -> Any:
    """Convert arrays to NumPy: unpickling a `jax.Array` would start JAX in the driver."""
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
