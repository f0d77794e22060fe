"""How much memory the devices have, and how much of it is in use."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from replicax.types import Device

__all__ = ["largest_free_block", "memory_in_use", "memory_limit"]


def memory_limit(devices: Sequence[Device]) -> int | None:
    """The bytes that JAX may use on each of these local devices; None if unknown.

    CPU devices share the machine's memory.
    """
    if any(device not in jax.local_devices(backend=device.platform) for device in devices):
        return None  # `rx.explain` compiles for devices that do not exist
    if devices[0].platform == "cpu":
        total = _machine_memory()
        return None if total is None else total // len(devices)
    return min((_stats(device, "bytes_limit") for device in devices), default=0) or None


def memory_in_use(devices: Sequence[Device]) -> int:
    """The bytes that arrays take on the fullest of these devices; 0 if the platform does not say."""
    return max((_stats(device, "bytes_in_use") for device in devices), default=0)


def largest_free_block(devices: Sequence[Device]) -> int | None:
    """The size of the largest array that still fits on each of these devices; None if unknown."""
    free = [
        max(_stats(device, "largest_free_block_bytes"), _stats(device, "bytes_limit") - pool)
        for device in devices
        if (pool := _stats(device, "pool_bytes"))
    ]
    return min(free, default=None)


def _stats(device: Any, name: str) -> int:
    return (device.memory_stats() or {}).get(name, 0)


@functools.cache
def _machine_memory() -> int | None:
    """The memory of this machine, or of the container that this process runs in."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on every system
        return None
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return total
