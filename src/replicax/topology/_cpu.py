"""Virtual CPU devices, and a thread pool large enough for their collectives.

A CPU can act as several devices, so a distributed program can be tested on one machine. There is a trap: in
a collective, every device of XLA's CPU client blocks one thread of the client's pool until all devices have
arrived. Steps queued behind the collective can take the threads that the missing devices need; then it
deadlocks, and after 40 seconds XLA aborts the process. With twice as many threads as devices we have never
seen this happen.

The size of the pool is fixed when the backend starts, from `PJRT_NPROC` in the environment. Therefore:

* `set_cpu_devices` requests the devices and the pool that they need;
* `prepare_cpu_pool`, called before Replicax starts JAX, requests the pool for devices that the user
  requested from JAX directly;
* `collectives_must_wait` detects that JAX has started with too small a pool. One collective program at a
  time is safe even then, so callers wait for each one before they start the next.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

import jax

from replicax._jax import backends_are_initialized
from replicax.errors import BackendStartedError, DeviceError
from replicax.types import Device

__all__ = ["collectives_must_wait", "num_cores", "prepare_cpu_pool", "set_cpu_devices"]

_THREADS_PER_DEVICE = 2
_POOL_SIZE_VARIABLES = ("PJRT_NPROC", "NPROC")  # XLA uses the first one that is a number
_POOL_THREAD_NAME = "tf_XLAEigen"
_DEVICE_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")

_logger = logging.getLogger("replicax")


def set_cpu_devices(num_devices: int) -> None:
    """Make the CPU act as several devices, to run a distributed program without accelerators.

    Call it first, before anything uses JAX: the devices are fixed when JAX starts. On a machine with
    accelerators, also name the CPU devices when you make a strategy: `["CPU:0", "CPU:1"]`.

    It also sets the environment variable `PJRT_NPROC`, which gives XLA the threads that collectives
    between these devices need.

    Args:
        num_devices: The number of CPU devices of this process, at least 1.

    Raises:
        DeviceError: `num_devices` is not a positive integer.
        BackendStartedError: JAX has already started with another number of CPU devices.

    >>> rx.set_cpu_devices(8)
    >>> len(jax.devices("cpu"))
    8
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
        raise DeviceError(
            f"`rx.set_cpu_devices` takes the number of devices, 1 or more; got {num_devices!r}."
        )
    if backends_are_initialized():
        _require_started_with(num_devices)
        return
    jax.config.update("jax_num_cpu_devices", num_devices)
    _request_pool(num_devices)


def prepare_cpu_pool() -> None:
    """Request the threads that JAX's CPU devices will need.

    Does nothing if JAX has already started, or for a single CPU device.
    """
    if not backends_are_initialized() and (num_devices := _num_devices_requested()) > 1:
        _request_pool(num_devices)


def collectives_must_wait(devices: Sequence[Device]) -> bool:
    """Whether a collective program over `devices` must finish before the next one starts.

    True for several CPU devices whose thread pool is too small for queued programs. The first time, a
    warning in the `replicax` log says how to avoid this.

    Args:
        devices: This process's devices that take part.
    """
    if len(devices) < 2 or any(device.platform != "cpu" for device in devices):
        return False
    num_devices = _num_devices_started()
    if _pool_size_started() >= _THREADS_PER_DEVICE * num_devices:
        return False
    _warn_of_small_pool(num_devices)
    return True


def _require_started_with(num_devices: int) -> None:
    if (started := _num_devices_started()) != num_devices:
        raise BackendStartedError(
            f"`rx.set_cpu_devices({num_devices})` was called too late: JAX has already started with "
            f"{started} CPU device(s). Call it first, before the first JAX operation, `jax.devices()` or "
            "strategy."
        )


def _num_devices_started() -> int:
    try:
        return len(jax.local_devices(backend="cpu"))
    except RuntimeError:  # JAX_PLATFORMS excludes the CPU
        return 0


def _num_devices_requested() -> int:
    """JAX's own rule: the config option, else the last XLA flag, else one device."""
    if (configured := jax.config.values["jax_num_cpu_devices"]) >= 0:
        return configured
    flags = _DEVICE_COUNT_FLAG.findall(os.environ.get("XLA_FLAGS", ""))
    return int(flags[-1]) if flags else 1


def _request_pool(num_devices: int) -> None:
    needed = _THREADS_PER_DEVICE * num_devices
    if _pool_size_requested() < needed:
        os.environ["PJRT_NPROC"] = str(max(needed, num_cores()))


def _pool_size_requested() -> int:
    """The size in the environment, else one thread per core."""
    for variable in _POOL_SIZE_VARIABLES:
        try:
            return int(os.environ[variable])
        except (KeyError, ValueError):
            continue
    return num_cores()


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool_size_started() -> int:
    """The size of the running pool, or a lower bound.

    The environment may have changed since JAX started, so take the smaller number where the threads can be
    counted.
    """
    requested = _pool_size_requested()
    counted = _num_pool_threads()
    return min(requested, counted) if counted else requested


def _num_pool_threads() -> int:
    """The number of pool threads on Linux; 0 on other systems."""
    num_threads = 0
    for name_file in Path("/proc/self/task").glob("*/comm"):
        try:
            num_threads += name_file.read_text().strip() == _POOL_THREAD_NAME
        except OSError:  # the thread has ended
            continue
    return num_threads


@functools.cache
def _warn_of_small_pool(num_devices: int) -> None:
    _logger.warning(
        "JAX started with %d CPU devices but only %d threads, so queued steps could deadlock. Replicax "
        "therefore waits for each step before it starts the next, which is slower. Call "
        "`rx.set_cpu_devices(%d)` before JAX is first used, or start Python with PJRT_NPROC=%d.",
        num_devices,
        _pool_size_started(),
        num_devices,
        _THREADS_PER_DEVICE * num_devices,
    )
