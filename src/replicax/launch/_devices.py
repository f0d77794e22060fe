"""Divides the devices among the workers on this machine: the GPUs, or virtual CPU devices."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from replicax.errors import DeviceError

__all__ = ["Devices", "divide_devices", "visible_gpus"]

_GPU_PLATFORMS = ("cuda", "gpu", "rocm")
_GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_LISTING_SECONDS = 30


@final
@dataclass(frozen=True)
class Devices:
    """The devices of one worker: GPUs, named as in CUDA_VISIBLE_DEVICES, or virtual CPU devices."""

    gpus: tuple[str, ...] = ()
    cpu_devices: int = 1


def divide_devices(
    num_workers: int, devices_per_worker: int | None, environment: Mapping[str, str]
) -> list[Devices]:
    """Choose the devices of each worker.

    Args:
        num_workers: the number of workers on this machine.
        devices_per_worker: None divides all GPUs evenly or, without GPUs, gives each worker one CPU device.
        environment: the environment variables of this process.

    Raises:
        DeviceError: there are GPUs, but not enough.

    >>> from replicax.launch import divide_devices
    >>> divide_devices(2, 3, {"JAX_PLATFORMS": "cpu"})
    [Devices(gpus=(), cpu_devices=3), Devices(gpus=(), cpu_devices=3)]
    """
    gpus = visible_gpus(environment)
    if not gpus:
        return [Devices(cpu_devices=devices_per_worker or 1)] * num_workers
    share = devices_per_worker or max(1, len(gpus) // num_workers)
    if share * num_workers > len(gpus):
        raise DeviceError(
            f"{num_workers} workers with {share} GPU(s) each need {num_workers * share} GPUs, but this "
            f"machine has {len(gpus)}: {', '.join(gpus)}. Start fewer workers, pass a smaller "
            "--devices-per-worker, or set JAX_PLATFORMS=cpu to train on virtual CPU devices."
        )
    return [Devices(gpus=tuple(gpus[i * share : (i + 1) * share])) for i in range(num_workers)]


def visible_gpus(environment: Mapping[str, str]) -> Sequence[str]:
    """The GPUs that JAX would use, without starting JAX; names for CUDA_VISIBLE_DEVICES."""
    platforms = environment.get("JAX_PLATFORMS", "")
    if platforms and not any(name in platforms.split(",") for name in _GPU_PLATFORMS):
        return []
    if not any(map(importlib.util.find_spec, _GPU_PLUGINS)):
        return []  # JAX can't use them
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return _listed_gpus() if visible is None else _named_gpus(visible)


def _named_gpus(visible: str) -> list[str]:
    """The GPUs in a CUDA_VISIBLE_DEVICES list; like CUDA, stop at the first invalid name."""
    names = [name.strip() for name in visible.split(",")]
    ends = [i for i, name in enumerate(names) if name in ("", "-1", "NoDevFiles")]
    return names[: ends[0]] if ends else names


def _listed_gpus() -> list[str]:
    if (program := shutil.which("nvidia-smi")) is None:
        return []
    listing = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_LISTING_SECONDS)
    lines = [line for line in listing.stdout.splitlines() if line.startswith("GPU ")]
    return [str(i) for i in range(len(lines))]
