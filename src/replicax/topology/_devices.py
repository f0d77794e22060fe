"""Device names: every spelling that TensorFlow users write, and the one that Replicax prints.

    "GPU:0"   "gpu"   "/gpu:0"   "/device:GPU:0"   "/job:localhost/replica:0/task:0/device:GPU:0"

all mean the first GPU of this process, and so does the `jax.Device` itself. An index counts the devices of
one platform in one process. CUDA and ROCm devices are both GPUs here. A device of another process has a
task: `"/job:worker/task:1/device:GPU:0"` is the first GPU of process 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax

from replicax.errors import DeviceError, RepeatedDeviceError
from replicax.topology._cpu import prepare_cpu_pool
from replicax.types import Device

__all__ = ["DeviceName", "device_name", "find_device", "parse_device_name", "resolve_devices"]

_SPELLING = re.compile(
    r"""
    /?
    (?: job : (?P<job> \w+ ) / )?
    (?: replica : 0 / )?
    (?: task : (?P<task> \d+ ) / )?
    (?: device : )?
    (?P<platform> [a-z] \w* ) (?: : (?P<index> \d+ ) )?
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_SAME_PLATFORM = {"CUDA": "GPU", "ROCM": "GPU"}
_KNOWN_PLATFORMS = ("GPU", "TPU", "CPU")


@final
@dataclass(frozen=True, slots=True)
class DeviceName:
    """A parsed name: device `index` of a platform, in this process or in process `task`.

    >>> from replicax.topology import DeviceName
    >>> str(DeviceName("CPU", 1))
    'CPU:1'
    >>> str(DeviceName("GPU", 0, task=3))
    '/job:worker/replica:0/task:3/device:GPU:0'
    """

    platform: str
    index: int = 0
    task: int | None = None

    def __str__(self) -> str:
        """The spelling that Replicax prints."""
        if self.task is None:
            return f"{self.platform}:{self.index}"
        return f"/job:worker/replica:0/task:{self.task}/device:{self.platform}:{self.index}"


def parse_device_name(name: str) -> DeviceName:
    """Parse a device name in any spelling. The device need not exist.

    Args:
        name: For example `"GPU:0"`, `"gpu"`, `"/cpu:1"` or `"/job:localhost/task:0/device:CPU:1"`.

    Raises:
        DeviceError: `name` is not a device name.

    >>> from replicax.topology import parse_device_name
    >>> parse_device_name("/device:cpu:1")
    DeviceName(platform='CPU', index=1, task=None)
    >>> parse_device_name("cuda")
    DeviceName(platform='GPU', index=0, task=None)
    """
    match = _SPELLING.fullmatch(name)
    if match is None:
        raise DeviceError(
            f"{name!r} is not a device name. Write it as 'GPU:0', '/cpu:1' or "
            "'/job:worker/task:1/device:GPU:0'."
        )
    platform = match["platform"].upper()
    return DeviceName(
        platform=_SAME_PLATFORM.get(platform, platform),
        index=int(match["index"] or 0),
        task=_task(name, match["job"], match["task"]),
    )


def _task(name: str, job: str | None, task: str | None) -> int | None:
    if job == "localhost" and task in (None, "0"):
        return None
    if job not in (None, "worker"):
        raise DeviceError(
            f"{name!r} names task {task or 0} of the job {job!r}. Devices belong to tasks of the job "
            "'worker', or to task 0 of 'localhost', which is this process."
        )
    return None if task is None else int(task)


def find_device(device: str | Device) -> Device:
    """The device with this name.

    Args:
        device: A name in any spelling, or a `jax.Device`, which is returned unchanged.

    Raises:
        DeviceError: `device` is not a device name, or the device does not exist.

    >>> from replicax.topology import find_device
    >>> find_device("/device:CPU:1") is jax.devices("cpu")[1]
    True
    """
    if isinstance(device, str):
        return _find_named(device)
    if isinstance(device, jax.Device):
        return device
    raise DeviceError(
        f"Expected a device name such as 'GPU:0' or a `jax.Device`, got {device!r} "
        f"of type {type(device).__name__}."
    )


def _find_named(spelling: str) -> Device:
    name = parse_device_name(spelling)
    candidates = _process_devices(name.platform, name.task)
    if name.index >= len(candidates):
        raise DeviceError(f"There is no device {spelling!r}. {_existing_devices()}{_how_to_get(name)}")
    return candidates[name.index]


def device_name(device: Device) -> str:
    """The name of a device, such as `"CPU:0"`; with its task if it belongs to another process.

    >>> from replicax.topology import device_name
    >>> device_name(jax.devices("cpu")[3])
    'CPU:3'
    """
    platform = _platform(device)
    task = None if device.process_index == jax.process_index() else device.process_index
    devices = _process_devices(platform, task)
    # `rx.explain` compiles for devices of another client, which nothing runs on.
    return str(DeviceName(platform, devices.index(device) if device in devices else device.id, task))


def resolve_devices(devices: Iterable[str | Device] | None = None) -> list[Device]:
    """Resolve a strategy's `devices` argument, and check that the devices can be used together.

    Args:
        devices: Names or `jax.Device`s. None means all devices of JAX's default backend, in all processes:
            the GPUs, else the TPUs, else the CPU devices.

    Raises:
        DeviceError: A device does not exist or is listed twice, the list is empty or mixes platforms, or
            `devices` is a single device.

    >>> from replicax.topology import device_name, resolve_devices
    >>> [device_name(device) for device in resolve_devices(["/cpu:1", "CPU:0"])]
    ['CPU:1', 'CPU:0']
    """
    if devices is None:
        prepare_cpu_pool()
        return list(jax.devices())
    named = _as_list(devices)
    found = [find_device(device) for device in named]
    _refuse_repetition(named, found)
    _refuse_mixed_platforms(found)
    return found


def group_devices(devices: Sequence[Device], logical_devices: int) -> list[tuple[Device, ...]]:
    """Group devices into replicas of `logical_devices` devices each.

    >>> from replicax.topology import group_devices, resolve_devices
    >>> [len(replica) for replica in group_devices(resolve_devices(), 4)]
    [4, 4]
    """
    number = logical_devices
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise DeviceError(f"logical_devices={number!r}: pass the number of devices per replica, 1 or more.")
    if len(devices) % number:
        raise DeviceError(
            f"{len(devices)} devices can't be divided into replicas with logical_devices={number} each. "
            f"Use a multiple of {number} devices. {_existing_devices()}"
        )
    return [tuple(devices[i : i + number]) for i in range(0, len(devices), number)]


def _as_list(devices: Any) -> list[str | Device]:
    if isinstance(devices, str | jax.Device):
        single = devices if isinstance(devices, str) else device_name(devices)
        raise DeviceError(f"`devices` must be a list of devices; for one device write [{single!r}].")
    if not isinstance(devices, Iterable):
        raise DeviceError(
            f"`devices` must be a list of names or `jax.Device`s, got {devices!r} "
            f"of type {type(devices).__name__}."
        )
    named = list(devices)
    if not named:
        raise DeviceError(
            f"`devices` is empty. List at least one device, or pass None for all. {_existing_devices()}"
        )
    return named


def _refuse_repetition(named: Sequence[str | Device], found: Sequence[Device]) -> None:
    spelled: dict[Device, str | Device] = {}
    for name, device in zip(named, found, strict=True):
        if device in spelled:
            raise RepeatedDeviceError(
                f"`devices` lists {device_name(device)} twice, as {spelled[device]!r} and as "
                f"{name!r}. A device can run only one replica. {_existing_devices()}"
                f"{_how_to_get_several(found)}"
            )
        spelled[device] = name


def _refuse_mixed_platforms(found: Sequence[Device]) -> None:
    if len({_platform(device) for device in found}) > 1:
        names = ", ".join(device_name(device) for device in found)
        raise DeviceError(
            f"`devices` mixes platforms: {names}. All replicas of a strategy run on one platform. "
            f"{_existing_devices()}"
        )


def _platform(device: Device) -> str:
    platform = device.platform.upper()
    return _SAME_PLATFORM.get(platform, platform)


def _process_devices(platform: str, task: int | None) -> list[Device]:
    """All devices of a platform in one process; empty if JAX does not have the platform."""
    prepare_cpu_pool()
    try:
        devices = jax.devices(platform.lower())
    except RuntimeError:
        return []
    process = jax.process_index() if task is None else task
    return [device for device in devices if device.process_index == process]


def _existing_devices() -> str:
    prepare_cpu_pool()
    platforms = dict.fromkeys([_platform(jax.devices()[0]), *_KNOWN_PLATFORMS])
    names = [device_name(device) for platform in platforms for device in _process_devices(platform, None)]
    return f"This process has {', '.join(names)}."


def _how_to_get(name: DeviceName) -> str:
    if name.platform not in _KNOWN_PLATFORMS:
        return " Device names look like 'GPU:0' or '/device:CPU:1'."
    if name.task is not None:
        return f" JAX runs in {jax.process_count()} process(es) here."
    if name.platform == "CPU":
        return _call_for_cpu_devices(name.index + 1)
    if not _process_devices(name.platform, None):
        return f" `jax.devices({name.platform.lower()!r})` shows why JAX finds no {name.platform}."
    return ""


def _how_to_get_several(devices: Sequence[Device]) -> str:
    enough = len(_process_devices("CPU", None)) >= len(devices)
    if enough or any(_platform(device) != "CPU" for device in devices):
        return ""
    return _call_for_cpu_devices(len(devices))


def _call_for_cpu_devices(num_devices: int) -> str:
    return (
        f" To have {num_devices} CPU devices, call `rx.set_cpu_devices({num_devices})` before JAX "
        "is first used."
    )
