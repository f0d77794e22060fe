"""Virtual CPU devices, and a thread pool large enough for their collectives.

A CPU can pose as several devices, which is how a distributed program is tried and tested on one
machine. It has a trap. In a collective, every device of XLA's CPU client blocks a thread of the
client's pool until all devices have arrived. When further steps are queued behind, they can take
the threads that the missing devices need; nobody arrives any more, and after 40 seconds XLA aborts
the process. A pool of twice as many threads as devices was never seen to run into this.

The size of the pool is fixed when the backend starts, from `PJRT_NPROC` in the environment. So:

* `set_cpu_devices` asks for the devices and for the pool that they need;
* `prepare_cpu_pool` does the second half for devices that the user asked JAX for, and is called
  before Replicax makes JAX start;
* `collectives_must_wait` tells that JAX had started before, with a pool that is too small. One
  collective program at a time is safe even then, so callers wait for each before they start the
  next.
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

__all__ = ["collectives_must_wait", "prepare_cpu_pool", "set_cpu_devices"]

_THREADS_PER_DEVICE = 2
_POOL_SIZE_VARIABLES = ("PJRT_NPROC", "NPROC")  # XLA takes the first that holds a number
_POOL_THREAD_NAME = "tf_XLAEigen"
_DEVICE_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")

_logger = logging.getLogger("replicax")


def set_cpu_devices(num_devices: int) -> None:
    """Make the CPU pose as several devices, to run a distributed program without any accelerator.

    Call it first, before anything uses JAX: the devices are fixed when JAX starts. A strategy picks
    CPU devices by itself only where there is no accelerator; elsewhere name them, as in
    `["CPU:0", "CPU:1"]`.

    It sets the environment variable `PJRT_NPROC` too, which gives XLA the threads that collectives
    between these devices need.

    Args:
        num_devices: How many CPU devices this process shall have, at least 1.

    Raises:
        DeviceError: `num_devices` is not a positive integer.
        BackendStartedError: JAX has started already, with another number of CPU devices.

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
    _ask_for_pool(num_devices)


def prepare_cpu_pool() -> None:
    """Give the CPU devices that JAX is about to start with the threads that they need.

    Does nothing once JAX has started, or for a single CPU device.
    """
    if not backends_are_initialized() and (num_devices := _num_devices_asked_for()) > 1:
        _ask_for_pool(num_devices)


def collectives_must_wait(devices: Sequence[Device]) -> bool:
    """Whether a collective program over `devices` must finish before the next one starts.

    That is so for several CPU devices whose thread pool is too small for programs that queue up.
    The first time, a warning in the log `replicax` says how to do better.

    Args:
        devices: The devices of this process that take part.
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
            f"`rx.set_cpu_devices({num_devices})` came too late: JAX has started with {started} "
            "CPU device(s) and can't change that any more. Call it first, before the first JAX "
            "operation, `jax.devices()` or strategy."
        )


def _num_devices_started() -> int:
    try:
        return len(jax.local_devices(backend="cpu"))
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return 0


def _num_devices_asked_for() -> int:
    """As JAX will decide it: its own setting, else the last XLA flag, else one device."""
    if (configured := jax.config.values["jax_num_cpu_devices"]) >= 0:
        return configured
    flags = _DEVICE_COUNT_FLAG.findall(os.environ.get("XLA_FLAGS", ""))
    return int(flags[-1]) if flags else 1


def _ask_for_pool(num_devices: int) -> None:
    needed = _THREADS_PER_DEVICE * num_devices
    if _pool_size_asked_for() < needed:
        os.environ["PJRT_NPROC"] = str(max(needed, _num_cores()))


def _pool_size_asked_for() -> int:
    """The number in the environment, else one thread per core."""
    for variable in _POOL_SIZE_VARIABLES:
        try:
            return int(os.environ[variable])
        except (KeyError, ValueError):
            continue
    return _num_cores()


def _num_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool_size_started() -> int:
    """How many threads the running pool has, or an underestimate.

    The environment may have been changed since JAX started, so where the threads can be counted,
    the smaller number is believed.
    """
    asked_for = _pool_size_asked_for()
    counted = _num_pool_threads()
    return min(asked_for, counted) if counted else asked_for


def _num_pool_threads() -> int:
    """The pool's threads as Linux lists them; 0 where it can't be known."""
    num_threads = 0
    for name_file in Path("/proc/self/task").glob("*/comm"):
        try:
            num_threads += name_file.read_text().strip() == _POOL_THREAD_NAME
        except OSError:  # the thread has ended meanwhile
            continue
    return num_threads


@functools.cache
def _warn_of_small_pool(num_devices: int) -> None:
    _logger.warning(
        "JAX started with %d CPU devices but only %d threads, and steps that queue up could "
        "deadlock. Replicax therefore waits for every step before it starts the next, which is "
        "slower. Call `rx.set_cpu_devices(%d)` before JAX is first used, or start Python with "
        "PJRT_NPROC=%d.",
        num_devices,
        _pool_size_started(),
        num_devices,
        _THREADS_PER_DEVICE * num_devices,
    )
