"""Checks of the devices, the thread pool of virtual CPU devices, the cluster and TPUs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax

from replicax.cli._check import Check, Finding, failed, passed, skipped
from replicax.cli._check_cluster import check_cluster
from replicax.cli._devices import INSTALL_JAX, NoDevicesError, all_devices
from replicax.topology import collectives_must_wait, prepare_cpu_pool, set_cpu_devices

__all__ = ["request_cpu_devices", "device_checks", "with_devices"]

_NUM_CPU_DEVICES = 4
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/gpus")
_TPU_VARIABLES = ("TPU_NAME", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")


def request_cpu_devices() -> None:
    """Split the CPU into several virtual devices, unless the environment sets their number."""
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.config.values["jax_num_cpu_devices"] < 0 and "host_platform_device_count" not in flags:
        set_cpu_devices(_NUM_CPU_DEVICES)
    prepare_cpu_pool()


def device_checks() -> list[Check]:
    """Devices, CPU threads, the cluster, and TPUs."""
    return [
        Check("devices", _check_devices, limit_seconds=60, advice=INSTALL_JAX),
        Check("threads of CPU devices", with_devices(_check_cpu_threads)),
        Check(
            "cluster", check_cluster, advice="Correct the variables that the message names, or unset them."
        ),
        Check("TPU", with_devices(_check_tpu)),
    ]


def with_devices(find: Callable[[], Finding]) -> Callable[[], Finding]:
    """Wrap a check that needs devices: without any, it fails and refers to the device check."""

    def find_with_devices() -> Finding:
        try:
            all_devices()
        except NoDevicesError:
            return failed("JAX has no devices", "`python -m replicax doctor --only devices` says why.")
        return find()

    return find_with_devices


def _check_devices() -> Finding:
    try:
        all_devices()
    except NoDevicesError as error:
        return failed(error.detail, error.advice)
    kinds = Counter(f"{d.platform.upper()} ({d.device_kind})" for d in jax.devices())
    seen = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    gpus = sorted(_NVIDIA_DRIVER.iterdir()) if _NVIDIA_DRIVER.is_dir() else []
    chosen = os.environ.get("JAX_PLATFORMS", "")
    if gpus and jax.default_backend() == "cpu" and "cpu" not in chosen:
        return failed(
            f"JAX sees {seen}, but this machine has {len(gpus)} NVIDIA GPU(s)",
            "pip install --upgrade 'jax[cuda13]' (or 'jax[cuda12]' for an older driver)",
        )
    return passed(f"{seen}{f'; JAX_PLATFORMS is {chosen}' if chosen else ''}")


def _check_cpu_threads() -> Finding:
    try:
        devices = jax.local_devices(backend="cpu")
    except RuntimeError:
        return skipped("JAX_PLATFORMS excludes the CPU")
    if len(devices) == 1:
        return skipped("a single CPU device needs none; rx.set_cpu_devices(n) creates several")
    if collectives_must_wait(devices):
        return failed(
            f"too few for {len(devices)} CPU devices, so each step waits for the previous one",
            f"Call rx.set_cpu_devices({len(devices)}) first, or set PJRT_NPROC={2 * len(devices)}.",
        )
    return passed(f"enough for {len(devices)} virtual CPU devices, on {os.cpu_count()} cores")


def _check_tpu() -> Finding:
    tpus = [device for device in jax.devices() if device.platform == "tpu"]
    found = ", ".join(f"{name}={os.environ[name]}" for name in _TPU_VARIABLES if name in os.environ)
    if tpus:
        return passed(
            f"{len(tpus)} x {tpus[0].device_kind}, {jax.process_count()} process(es) {found}".strip()
        )
    if found:
        return failed(f"{found}, but JAX sees no TPU", "pip install --upgrade 'jax[tpu]'")
    return skipped("none: TPUStrategy uses the devices above instead")
