"""Devices: their names, virtual CPU devices, memory, and the mesh that arranges them by replica."""

from replicax.topology._cpu import collectives_must_wait, num_cores, prepare_cpu_pool, set_cpu_devices
from replicax.topology._devices import (
    DeviceName,
    device_name,
    find_device,
    group_devices,
    parse_device_name,
    resolve_devices,
)
from replicax.topology._memory import largest_free_block, memory_in_use, memory_limit
from replicax.topology._mesh import REPLICA_AXIS, ReplicaMesh, is_key, prime_factors

__all__ = [
    "REPLICA_AXIS",
    "DeviceName",
    "ReplicaMesh",
    "collectives_must_wait",
    "device_name",
    "find_device",
    "group_devices",
    "is_key",
    "largest_free_block",
    "memory_in_use",
    "memory_limit",
    "num_cores",
    "parse_device_name",
    "prepare_cpu_pool",
    "prime_factors",
    "resolve_devices",
    "set_cpu_devices",
]
