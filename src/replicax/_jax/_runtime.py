"""Backends, and the processes that run one program.

What the public API lacks, above all:

* whether a backend has started: virtual CPU devices must be requested before that;
* messages between processes that are not collectives, so that they need no fixed order: they go through the
  key-value store of `jax.distributed`;
* control over joining a cluster: `jax.distributed.initialize` detects Open MPI and Kubernetes, but connects
  at once, only to a service in the first worker's process, and lets Gloo choose the address it listens on.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import jax

from replicax._jax._access import private, unsupported

__all__ = [
    "backends_are_initialized",
    "connect_to_service",
    "detect_kubernetes_job",
    "distributed_client",
    "forget_profile",
    "has_tpu",
    "open_mpi_coordinator",
    "planned_cpu_devices",
    "service_function",
    "use_gloo_at",
]

_backends_are_initialized = private("xla_bridge", "backends_are_initialized")
_distributed_state = private("distributed", "global_state")
_OmpiCluster, _K8sCluster = private("clusters", "OmpiCluster"), private("clusters", "K8sCluster")


def backends_are_initialized() -> bool:
    """Whether JAX has started a backend, after which the number of devices is fixed."""
    return _backends_are_initialized()


def has_tpu() -> bool:
    """Whether this process can use a TPU; before JAX has started, whether the machine has one."""
    if backends_are_initialized():
        return any(device.platform == "tpu" for device in jax.local_devices())
    wanted = jax.config.values.get("jax_platforms") or "tpu"
    return "tpu" in wanted and private("hardware_utils", "num_available_tpu_chips_and_device_id")()[0] > 0


@functools.lru_cache(maxsize=4)
def planned_cpu_devices(count: int) -> tuple[Any, ...]:
    """`count` CPU devices to compile for, whatever this machine has. Nothing should run on them."""
    return tuple(private("lib", "xla_client.make_cpu_client")(num_devices=count).devices())


def distributed_client() -> Any:
    """The client of the key-value store that `jax.distributed` runs; None with a single process."""
    try:
        return _distributed_state.client
    except AttributeError as error:
        raise unsupported("jax._src.distributed.global_state.client") from error


def open_mpi_coordinator() -> str:
    """'host:port' of the coordinator, from the environment variables that Open MPI 4 sets."""
    return _OmpiCluster.get_coordinator_address(timeout_secs=None, override_coordinator_port=None)


def detect_kubernetes_job(port: int) -> tuple[str, int] | None:
    """'host:port' of the first pod of this pod's Job, and the number of pods, from the Kubernetes API.

    None if the package `kubernetes` is not installed. Raises `RuntimeError` if the API refuses the request
    or this pod does not belong to a Job.
    """
    if importlib.util.find_spec("kubernetes") is None or not _K8sCluster.is_env_present():
        return None
    address = _K8sCluster.get_coordinator_address(timeout_secs=None, override_coordinator_port=str(port))
    return address, _K8sCluster.get_process_count()


def service_function() -> tuple[str, str]:
    """The jaxlib module and the name of the function that starts a coordination service.

    A process that has not imported JAX can call it.
    """
    make_service = private("lib", "_jax.get_distributed_runtime_service")
    return make_service.__module__, make_service.__name__


def connect_to_service(address: str, num_processes: int, process_id: int, heartbeat_seconds: float) -> None:
    """Do what `jax.distributed.initialize` does, with a service that is already running."""
    make_client = private("lib", "_jax.get_distributed_runtime_client")
    state = _distributed_state
    client = make_client(
        address,
        process_id,
        init_timeout=300,
        heartbeat_timeout=max(1, round(heartbeat_seconds)),
        use_compression=True,
    )
    client.connect()
    state.client, state.coordinator_address = client, address
    state.process_id, state.num_processes = process_id, num_processes
    state.initialize_preemption_sync_manager()


def use_gloo_at(host: str) -> None:
    """Make Gloo listen on `host` in this process; call it before JAX starts.

    By default Gloo listens on the address that the machine's host name resolves to.
    """
    make_cpu_client = private("xla_bridge", "make_cpu_client")
    make_collectives = private("lib", "_jax.make_gloo_tcp_collectives")

    def make_client() -> Any:
        client = distributed_client()
        if client is None or jax.config.values["jax_cpu_collectives_implementation"] != "gloo":
            return make_cpu_client()
        return make_cpu_client(make_collectives(distributed_client=client, hostname=host))

    register = private("xla_bridge", "register_backend_factory")
    register("cpu", make_client, priority=0, fail_quietly=False)


def forget_profile() -> None:
    """Discard a profile that could not be written. Until then, JAX refuses to start another."""
    state = private("profiler", "_profile_state")  # imported here: few programs make profiles
    with state.lock:
        state.reset()
