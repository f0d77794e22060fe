"""The environment of a worker: its place in the cluster, and its devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["DEVICE_SETTINGS", "worker_environment"]

# Settings of the CPU devices of the process that starts workers, which are not those of the workers.
DEVICE_SETTINGS = ("PJRT_NPROC", "NPROC", "JAX_NUM_CPU_DEVICES")
_DEVICE_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=\d+\s*")


def worker_environment(
    inherited: Mapping[str, str], addresses: Sequence[str], rank: int, cpu_devices: int = 1
) -> dict[str, str]:
    """The environment variables of the worker with this rank.

    Args:
        inherited: the environment variables of the process that starts it.
        addresses: the addresses of all workers.
        rank: the worker's index in `addresses`.
        cpu_devices: on CPU, the number of virtual devices that a strategy uses in this worker.

    >>> from replicax.launch import worker_environment
    >>> worker_environment({}, ["localhost:11000", "localhost:11001"], rank=1)["TF_CONFIG"]
    '{"cluster": {"worker": ["localhost:11000", "localhost:11001"]}, "task": ...
    """
    kept = {name: value for name, value in inherited.items() if name not in DEVICE_SETTINGS}
    if flags := kept.pop("XLA_FLAGS", ""):
        kept["XLA_FLAGS"] = _DEVICE_COUNT_FLAG.sub("", flags)
    task: dict[str, Any] = {"type": "worker", "index": rank}
    if cpu_devices > 1:
        task["num_accelerators"] = {"CPU": cpu_devices}
    config = {"cluster": {"worker": list(addresses)}, "task": task}
    return kept | {
        "JAX_NUM_CPU_DEVICES": str(cpu_devices),
        "PYTHONUNBUFFERED": "1",  # what a worker printed before it was killed is not lost
        "TF_CONFIG": json.dumps(config),
    }
