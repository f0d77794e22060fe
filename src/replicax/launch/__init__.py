"""Starting the workers of a cluster on this machine.

A worker gets its place in the cluster and its devices from its environment, and listens on the loopback
interface only. It leads a process group of its own, and a guard kills that group when the process that
started it ends, even by SIGKILL. `python -m replicax launch` and `replicax.testing` are built on this.
"""

from replicax.launch._devices import Devices, divide_devices
from replicax.launch._environment import DEVICE_SETTINGS, worker_environment
from replicax.launch._guard import Guard
from replicax.launch._launcher import LaunchOptions, launch
from replicax.launch._ports import free_ports, local_addresses
from replicax.launch._process import WorkerProcess, describe_status

__all__ = [
    "DEVICE_SETTINGS",
    "Devices",
    "Guard",
    "LaunchOptions",
    "WorkerProcess",
    "describe_status",
    "divide_devices",
    "free_ports",
    "launch",
    "local_addresses",
    "worker_environment",
]
