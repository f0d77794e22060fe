"""Where things run: device names, virtual CPU devices, meshes, and which devices make up a replica."""

from replicax.topology._assignment import DeviceAssignment, Topology
from replicax.topology._cpu import collectives_must_wait, prepare_cpu_pool, set_cpu_devices
from replicax.topology._devices import (
    DeviceName,
    device_name,
    find_device,
    parse_device_name,
    resolve_devices,
)
from replicax.topology._mesh import REPLICA_AXIS, ReplicaMesh

__all__ = [
    "REPLICA_AXIS",
    "DeviceAssignment",
    "DeviceName",
    "ReplicaMesh",
    "Topology",
    "collectives_must_wait",
    "device_name",
    "find_device",
    "parse_device_name",
    "prepare_cpu_pool",
    "resolve_devices",
    "set_cpu_devices",
]
