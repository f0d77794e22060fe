"""The environment variables of a worker: its place in the cluster, and its devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from replicax.launch._devices import Devices

__all__ = ["worker_environment"]

# CPU device settings of the launching process, which the workers must not inherit.
_DEVICE_SETTINGS = ("PJRT_NPROC", "NPROC", "JAX_NUM_CPU_DEVICES")
_DEVICE_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=\d+\s*")


def worker_environment(
    inherited: Mapping[str, str], addresses: Sequence[str], rank: int, devices: Devices
) -> dict[str, str]:
    """The environment variables of the worker with this rank.

    Args:
        inherited: the environment variables of the process that starts it.
        addresses: the addresses of all workers, on this machine.
        rank: the worker's index in `addresses`.
        devices: the devices that a strategy uses in this worker.

    >>> from replicax.launch import Devices, worker_environment
    >>> worker_environment({}, ["localhost:11000", "localhost:11001"], 1, Devices())["TF_CONFIG"]
    '{"cluster": {"worker": ["localhost:11000", "localhost:11001"]}, "task": ...
    """
    kept = {name: value for name, value in inherited.items() if name not in _DEVICE_SETTINGS}
    if flags := kept.pop("XLA_FLAGS", ""):
        kept["XLA_FLAGS"] = _DEVICE_COUNT_FLAG.sub("", flags)
    task: dict[str, Any] = {"type": "worker", "index": rank}
    if devices.gpus:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(devices.gpus)
    else:
        kept["JAX_NUM_CPU_DEVICES"] = str(devices.cpu_devices)
        task["num_accelerators"] = {"CPU": devices.cpu_devices}
    kept.setdefault("NCCL_SOCKET_IFNAME", "lo")  # by default NCCL listens on the first network interface
    config = {"cluster": {"worker": list(addresses)}, "task": task}
    return kept | {
        "PYTHONFAULTHANDLER": "1",  # a crash in native code prints the Python stacks
        "PYTHONUNBUFFERED": "1",  # keeps what a worker printed before it was killed
        "TF_CONFIG": json.dumps(config),
    }
