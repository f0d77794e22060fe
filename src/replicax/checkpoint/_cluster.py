"""Saving in a cluster: the processes agree on a checkpoint, and the first one writes it.

Messages go through the coordinator of `jax.distributed`. A barrier on the devices would not do: checkpoints
are written in a background thread, whose collectives could not be ordered with those of the steps.
"""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from replicax.cluster import exchange_between_processes
from replicax.errors import CheckpointError
from replicax.topology import prepare_cpu_pool

__all__ = ["agree", "on_first_process"]

_TIMEOUT_SECONDS = 3600.0
_num_exchanges: collections.Counter[str] = collections.Counter()


def agree(directory: pathlib.Path, name: str) -> None:
    """Wait until all processes are about to save the checkpoint `name`; raise if one saves another."""
    names = _exchange(directory, name)
    if any(other != name for other in names):
        told = ", ".join(f"process {i} saves {other}" for i, other in enumerate(names))
        raise CheckpointError(f"all processes must save the same checkpoint, but {told}")


def on_first_process(directory: pathlib.Path, action: Callable[[], None]) -> None:
    """Call `action` in the first process; the others wait, and raise if it failed."""
    error: Exception | None = None
    if jax.process_index() == 0:
        try:
            action()
        except Exception as raised:
            error = raised
    told = _exchange(directory, None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    if told[0] is not None:
        raise CheckpointError(f"the first process failed with {told[0]}")


def _exchange(directory: pathlib.Path, message: Any) -> list[Any]:
    """The messages of all processes about the checkpoints in `directory`."""
    prepare_cpu_pool()  # counting the processes may start JAX
    if jax.process_count() == 1:
        return [message]
    topic = f"replicax/checkpoint{directory}"
    number = _num_exchanges[topic]
    _num_exchanges[topic] += 1
    processes = range(jax.process_count())
    return exchange_between_processes(processes, topic, number, message, lambda: False, _TIMEOUT_SECONDS)
