"""Saving in a cluster: the processes agree on a step number, write their parts, and process 0 commits.

Messages go through the coordinator of `jax.distributed`, not through the devices: checkpoints are written
in a background thread, whose collectives could not be ordered with those of the training steps.
"""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from replicax._messages import user_line
from replicax.cluster import Collective, exchange_between_processes
from replicax.collectives import order_of_all
from replicax.errors import CheckpointError
from replicax.topology import prepare_cpu_pool

__all__ = ["agree_on_step", "agree_to_restore", "on_each_process", "on_first_process"]

_T = TypeVar("_T")

_MEETING_SECONDS = 300.0
_WRITING_SECONDS = 3600.0
_num_exchanges: collections.Counter[str] = collections.Counter()


def agree_on_step(path: pathlib.Path, number: int, *, is_given: bool, own_folders: bool = False) -> int:
    """Wait until all processes are about to save a checkpoint at `path`, and return its number.

    Call this in the training thread, before the values are copied: copying may need collectives. Unless the
    caller chose the number, process 0 does, because the other processes may see a shared folder with a
    delay. With `own_folders`, the processes may use different folders and arrive with different numbers.

    Raises:
        CollectiveMismatchError: a process moves on without saving, or saves another checkpoint.
    """
    prepare_cpu_pool()  # `process_count` may start JAX
    if jax.process_count() == 1:
        return number
    named = path.name if own_folders else str(path)
    name = named if is_given and not own_folders else f"{named.removesuffix(str(number))}*"
    saving = Collective("saving a checkpoint, which all processes must do together,", name, user_line())
    with order_of_all().turn(saving, number, _MEETING_SECONDS) as numbers:
        return numbers[0]


def agree_to_restore(path: pathlib.Path, problem: str | None) -> str | None:
    """Wait until all processes have read their part of a checkpoint; returns the first problem, if any.

    Args:
        path: the checkpoint.
        problem: why this process could not read it; None if it could.
    """
    what = "restoring a checkpoint, which all processes must do together,"
    with order_of_all().turn(Collective(what, str(path), user_line()), problem, _WRITING_SECONDS) as found:
        others = [f"Process {i}: {text}" for i, text in enumerate(found) if text is not None]
    return problem or next(iter(others), None)


def on_first_process(folder: str, action: Callable[[], _T]) -> _T:
    """Call `action`, which writes to `folder`, on process 0 while the others wait.

    All processes pass the same `folder`. All of them get the result of `action`, which must be JSON, or an
    error if it failed.
    """
    return _on(lambda process: process == 0, folder, action)[0]


def on_each_process(folder: str, action: Callable[[], _T]) -> list[_T]:
    """Call `action` on every process; returns all results by process, or raises if one failed."""
    return _on(lambda process: True, folder, action)


def _on(chosen: Callable[[int], bool], folder: str, action: Callable[[], _T]) -> list[_T]:
    error: Exception | None = None
    result: Any = None
    if chosen(jax.process_index()):
        try:
            result = action()
        except Exception as raised:
            error = raised
    told = _exchange(folder, [result, None if error is None else f"{type(error).__name__}: {error}"])
    if error is not None:
        raise error
    for process, (_, problem) in enumerate(told):
        if problem is not None:
            name = "the first process" if process == 0 else f"process {process}"
            raise CheckpointError(f"{name} failed with {problem}")
    return [result for result, _ in told]


def _exchange(folder: str, message: Any) -> list[Any]:
    """Exchange messages about the checkpoints in `folder`; returns those of all processes."""
    if jax.process_count() == 1:
        return [message]
    topic = f"replicax/checkpoint/{folder}"
    number = _num_exchanges[topic]
    _num_exchanges[topic] += 1
    processes = range(jax.process_count())
    return exchange_between_processes(
        processes, topic, number, message, lambda: False, _WRITING_SECONDS, may_take_long=True
    )
