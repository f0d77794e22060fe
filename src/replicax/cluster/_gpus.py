"""Dividing the GPUs of a host between the tasks that run on it, with CUDA_VISIBLE_DEVICES.

JAX reads the variable when it starts, so the GPUs of a task are chosen before.
"""

from __future__ import annotations

import os
from pathlib import Path

from replicax._jax import backends_are_initialized
from replicax.errors import BackendStartedError, ClusterError

__all__ = ["gpus_of_host", "show_gpus", "show_share_of_gpus"]

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_DEVICE_FILES = Path("/dev")


def gpus_of_host() -> list[str] | None:
    """The GPUs in CUDA_VISIBLE_DEVICES, or else those of the host; None if it has none."""
    shown = os.environ.get(_VARIABLE)
    if shown is not None:
        return [gpu.strip() for gpu in shown.split(",") if gpu.strip()]
    numbers = sorted(int(file.name[6:]) for file in _DEVICE_FILES.glob("nvidia[0-9]*"))
    return list(map(str, range(len(numbers)))) or None


def show_gpus(gpus: list[str], resolver: str) -> None:
    """Let JAX see these GPUs only.

    Raises:
        BackendStartedError: JAX has started with others.
    """
    if os.environ.get(_VARIABLE) == ",".join(gpus):
        return
    if backends_are_initialized():
        raise BackendStartedError(
            f"{resolver} chooses the GPUs of this task, but JAX has already started with all of them. Make "
            "the resolver before JAX is first used, or pass auto_set_gpu=False."
        )
    os.environ[_VARIABLE] = ",".join(gpus)


def show_share_of_gpus(local_index: int, num_local_tasks: int, resolver: str) -> None:
    """Divide the GPUs of the host evenly between its tasks, and show this task its share.

    A list that is shorter than the number of tasks was made for this task alone, and stays.

    Raises:
        ClusterError: the tasks of this host would have different numbers of GPUs.
    """
    gpus = gpus_of_host()
    if not gpus or num_local_tasks == 1 or len(gpus) < num_local_tasks:
        return
    if len(gpus) % num_local_tasks:
        raise ClusterError(
            f"{resolver} can't divide the {len(gpus)} GPUs of this host, {', '.join(gpus)}, evenly between "
            f"its {num_local_tasks} tasks. Start another number of tasks, set {_VARIABLE}, or pass "
            "auto_set_gpu=False."
        )
    share = len(gpus) // num_local_tasks
    show_gpus(gpus[local_index * share :][:share], resolver)
