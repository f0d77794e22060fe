"""Divides a host's GPUs among the tasks on it, with CUDA_VISIBLE_DEVICES.

JAX reads the variable when its backend starts, so the GPUs must be chosen before that.
"""

from __future__ import annotations

import os
from pathlib import Path

from replicax._jax import backends_are_initialized
from replicax.errors import BackendStartedError, ClusterError

__all__ = ["visible_gpus", "set_visible_gpus", "set_visible_share"]

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_DEVICE_FILES = Path("/dev")


def visible_gpus() -> list[str] | None:
    """The GPUs in CUDA_VISIBLE_DEVICES, otherwise all GPUs of the host; None if there are none."""
    shown = os.environ.get(_VARIABLE)
    if shown is not None:
        return [gpu.strip() for gpu in shown.split(",") if gpu.strip()]
    numbers = sorted(int(file.name[6:]) for file in _DEVICE_FILES.glob("nvidia[0-9]*"))
    return list(map(str, range(len(numbers)))) or None


def set_visible_gpus(gpus: list[str], resolver: str) -> None:
    """Make only these GPUs visible to JAX.

    Raises:
        BackendStartedError: JAX has already started with other GPUs.
    """
    if os.environ.get(_VARIABLE) == ",".join(gpus):
        return
    if backends_are_initialized():
        raise BackendStartedError(
            f"{resolver} chooses the GPUs of this task, but JAX has already started with all of them. "
            "Create the resolver before JAX is first used, or pass auto_set_gpu=False."
        )
    os.environ[_VARIABLE] = ",".join(gpus)


def set_visible_share(local_index: int, num_local_tasks: int, resolver: str) -> None:
    """Divide the host's GPUs evenly among its tasks, and make only this task's share visible.

    If the list has fewer GPUs than the host has tasks, it was made for this task alone and is left alone.

    Raises:
        ClusterError: the tasks of this host would have different numbers of GPUs.
    """
    gpus = visible_gpus()
    if not gpus or num_local_tasks == 1 or len(gpus) < num_local_tasks:
        return
    if len(gpus) % num_local_tasks:
        raise ClusterError(
            f"{resolver} can't divide the {len(gpus)} GPUs of this host, {', '.join(gpus)}, evenly between "
            f"its {num_local_tasks} tasks. Start another number of tasks, set {_VARIABLE}, or pass "
            "auto_set_gpu=False."
        )
    share = len(gpus) // num_local_tasks
    set_visible_gpus(gpus[local_index * share :][:share], resolver)
