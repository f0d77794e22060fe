"""Starts the workers of a cluster on this machine.

A worker gets its rank and its devices through environment variables, and listens only on the loopback
interface. Each worker has its own process group, and a guard kills that group when the launcher is gone,
even by SIGKILL. `python -m replicax launch` and `replicax.testing` are built on this.
"""

from replicax.launch._devices import Devices, divide_devices
from replicax.launch._environment import worker_environment
from replicax.launch._guard import Guard
from replicax.launch._launcher import LaunchOptions, launch
from replicax.launch._ports import free_ports, local_addresses
from replicax.launch._process import WorkerProcess, describe_status

__all__ = [
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
