"""Messages between the processes of a cluster, through the coordinator of `jax.distributed`.

They are not collectives, so any thread may exchange them, in any order.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax._jax import distributed_client
from replicax.cluster._watchdog import raise_failure, waiting_for
from replicax.errors import ClusterError, CollectiveTimeoutError

__all__ = ["all_published", "exchange_between_processes", "publish", "published"]

_POLL_MILLISECONDS = 200
_BLOCK = 64


def exchange_between_processes(
    processes: Sequence[int],
    topic: str,
    number: int,
    message: Any,
    cancelled: Callable[[], bool],
    timeout_seconds: float,
    *,
    may_take_long: bool = False,
) -> list[Any]:
    """Send `message` to all `processes` and return the messages of all of them, in order.

    Every process calls this with its own message. Messages are JSON and are numbered from 0 within a topic.
    A process that others wait for is reported as stuck after a while, unless `may_take_long`.

    Raises:
        CollectiveTimeoutError: a message did not arrive in time, or before `cancelled()` became true.
        WorkerFailedError: another worker has failed.
    """
    client = distributed_client()
    if client is None:
        raise ClusterError(
            f"Processes {list(processes)} can't exchange messages: jax.distributed is not initialized. "
            "Call `jax.distributed.initialize` first, or let a MultiWorkerMirroredStrategy do it."
        )
    own = jax.process_index()
    mine = json.dumps(message)
    client.key_value_set(_key(topic, number, own), mine)
    deadline = time.monotonic() + timeout_seconds

    def receive(process: int) -> Any:
        while process != own:
            try:
                return json.loads(
                    client.blocking_key_value_get(_key(topic, number, process), _POLL_MILLISECONDS)
                )
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            raise_failure()
            if cancelled():
                raise CollectiveTimeoutError(
                    f"Process {own} was told to stop waiting for message {number} of process {process} "
                    f"about {topic}."
                )
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(
                    f"Process {own} timed out after {timeout_seconds:g} s waiting for message {number} of "
                    f"process {process} about {topic}. Check that this process is still running."
                )
        return json.loads(mine)

    def wait(process: int) -> Any:
        waiting = waiting_for(process, f"message {number} about {topic}")
        with contextlib.nullcontext() if may_take_long else waiting:
            return receive(process)

    received = [wait(process) for process in processes]
    if number and number % _BLOCK == 0 and own == processes[0]:
        # All processes have sent this message, so all have read the messages before it.
        client.key_value_delete(f"{topic}/{number // _BLOCK - 1}/")
    return received


def publish(topic: str, message: Any) -> None:
    """Publish a JSON message that other processes can poll; it replaces the previous one."""
    client = distributed_client()
    if client is not None:
        client.key_value_set(f"{topic}/{jax.process_index()}", json.dumps(message), allow_overwrite=True)


def all_published(topic: str) -> dict[int, Any]:
    """The latest message about `topic` that each process has published, by process."""
    client = distributed_client()
    found = [] if client is None else client.key_value_dir_get(f"{topic}/")
    return {int(key.rpartition("/")[2]): json.loads(message) for key, message in found}


def published(topic: str, process: int) -> Any:
    """The latest message about `topic` that `process` has published; None if there is none."""
    client = distributed_client()
    if client is None:
        return None
    try:
        return json.loads(client.key_value_try_get(f"{topic}/{process}"))
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error):
            return None
        raise


def _key(topic: str, number: int, process: int) -> str:
    """The key of a message. Keys share a prefix per block, so that one request deletes a whole block."""
    return f"{topic}/{number // _BLOCK}/{number}/{process}"
