"""The devices of this process, and virtual CPU devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import jax

from replicax.errors import DeviceError
from replicax.topology import device_name, set_cpu_devices

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "list_logical_devices",
    "list_physical_devices",
    "set_logical_device_configuration",
]


@final
@dataclasses.dataclass(frozen=True)
class PhysicalDevice:
    """A hardware device."""

    name: str
    device_type: str


@final
@dataclasses.dataclass(frozen=True)
class LogicalDevice:
    """A device as programs see it; a physical device may be split into several."""

    name: str
    device_type: str


@final
@dataclasses.dataclass(frozen=True)
class LogicalDeviceConfiguration:
    """One of the logical devices that a physical device is split into.

    Args:
        memory_limit: must be None: JAX can't divide the memory of a device.
        experimental_priority: must be None.
        experimental_device_ordinal: must be None.
    """

    memory_limit: int | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None

    def __post_init__(self) -> None:
        settings = (self.memory_limit, self.experimental_priority, self.experimental_device_ordinal)
        if any(setting is not None for setting in settings):
            raise DeviceError(
                "LogicalDeviceConfiguration(memory_limit=...): JAX can't divide the memory of a device. To "
                "limit the whole process, set XLA_PYTHON_CLIENT_MEM_FRACTION."
            )


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The hardware: one CPU, and each GPU and TPU core. Listing the CPU does not initialize JAX.

    >>> from replicax import tf
    >>> tf.config.list_physical_devices("CPU")
    [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """
    if device_type is not None and device_type.upper() == "CPU":
        return [PhysicalDevice("/physical_device:CPU:0", "CPU")]
    cpus = [] if device_type else list_physical_devices("CPU")
    others = [d for d in list_logical_devices(device_type) if d.device_type != "CPU"]
    return [*cpus, *(PhysicalDevice(f"/physical_device:{d.name}", d.device_type) for d in others)]


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """The devices that strategies can use in this process.

    >>> from replicax import tf
    >>> tf.config.list_logical_devices("CPU")[1]
    LogicalDevice(name='CPU:1', device_type='CPU')
    """
    devices = [*jax.local_devices(backend="cpu"), *(d for d in jax.local_devices() if d.platform != "cpu")]
    named = [LogicalDevice(device_name(d), device_name(d).split(":")[0]) for d in devices]
    return [d for d in named if device_type is None or d.device_type == device_type.upper()]


def set_logical_device_configuration(
    device: Any, logical_devices: Sequence[LogicalDeviceConfiguration]
) -> None:
    """Split the CPU into several virtual devices (`rx.set_cpu_devices`). Call it before JAX is used.

    >>> from replicax import tf
    >>> cpu, = tf.config.list_physical_devices("CPU")
    >>> tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
    """
    if getattr(device, "device_type", None) != "CPU":
        raise DeviceError(f"Only the CPU can be split into several devices, got {device!r}.")
    set_cpu_devices(len(logical_devices))
