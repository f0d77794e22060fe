"""TPUs: `TPUClusterResolver`, and TensorFlow's functions that initialize a TPU.

A JAX program runs *on* the machine that the TPU is attached to. There is no remote TPU to look up, connect
to or initialize, so these functions do little: they return the devices that JAX has. Programs that
initialize a TPU for TensorFlow run unchanged; a remote TPU, given by name, is refused.

Without a TPU, `TPUClusterResolver()` raises, which TensorFlow programs catch to choose another strategy.
With `TPUClusterResolver("local")`, JAX's other devices stand in for TPU cores, with a warning, so that TPU
programs can be tested on any machine.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, final

from replicax._jax import has_tpu
from replicax.cluster._resolver import ClusterResolver, master_url, refuse_config_proto
from replicax.cluster._spec import ClusterSpec
from replicax.errors import ClusterError
from replicax.topology import resolve_devices
from replicax.tpu import Topology
from replicax.types import Device

__all__ = [
    "TPUClusterResolver",
    "TPUSystemMetadata",
    "connect_to_cluster",
    "initialize_tpu_system",
    "shutdown_tpu_system",
    "warn_of_stand_ins",
]

_LOCAL = (None, "", "local")

_logger = logging.getLogger("replicax")


class TPUSystemMetadata(NamedTuple):
    """The size of a TPU; returned by `TPUClusterResolver.get_tpu_system_metadata`."""

    num_cores: int
    """The number of cores of all hosts."""
    num_hosts: int
    """The number of processes."""
    num_of_cores_per_host: int
    """The number of cores of each process."""
    topology: Topology
    """The grid of cores."""
    devices: tuple[Device, ...]
    """The cores."""


@final
class TPUClusterResolver(ClusterResolver):
    """The TPU that this process runs on, or the whole slice if it spans several hosts.

    Args:
        tpu: None or "" means this machine's TPU; "local" also accepts other devices in place of TPU cores.
            A name or an address is refused: JAX can't use a remote TPU.
        zone: must be None, like the following arguments, which locate a TPU by name.
        project: must be None.
        job_name: must be "worker", the job of all processes of a TPU.
        coordinator_name: must be None.
        coordinator_address: must be None.
        credentials: must be "default".
        service: must be None.
        discovery_url: must be None.

    Raises:
        ClusterError: this machine has no TPU, or the arguments name a remote one; the message says how
            to run there.

    >>> from replicax.cluster import TPUClusterResolver
    >>> resolver = TPUClusterResolver("local")
    >>> len(resolver.devices)
    8
    >>> TPUClusterResolver(tpu="my-tpu", zone="europe-west4-a")
    Traceback (most recent call last):
        ...
    replicax.errors.ClusterError: TPUClusterResolver(tpu='my-tpu', zone='europe-west4-a') names a TPU ...
    """

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: Any = "default",
        service: Any = None,
        discovery_url: str | None = None,
    ) -> None:
        if job_name != "worker":
            raise ClusterError(
                f"TPUClusterResolver(job_name={job_name!r}): the job of the processes of a TPU is 'worker'."
            )
        remote = {
            "tpu": None if tpu in _LOCAL else tpu,
            "zone": zone,
            "project": project,
            "coordinator_name": coordinator_name,
            "coordinator_address": coordinator_address,
            "credentials": None if credentials == "default" else credentials,
            "service": service,
            "discovery_url": discovery_url,
        }
        named = ", ".join(f"{name}={value!r}" for name, value in remote.items() if value is not None)
        if named:
            raise ClusterError(
                f"TPUClusterResolver({named}) names a TPU to use over the network, but JAX computes on the "
                "machine that the program runs on. Start the program on the TPU VM "
                "(`gcloud compute tpus tpu-vm ssh NAME --worker=all --command='python train.py'`) and "
                "leave these arguments out; on a slice of several hosts, call "
                "`jax.distributed.initialize()` first."
            )
        if tpu != "local" and not has_tpu():
            raise ClusterError(
                f"TPUClusterResolver(tpu={tpu!r}): this machine has no TPU. TensorFlow programs catch this "
                "ValueError and choose another strategy. To test a program for TPUs with other devices in "
                "place of TPU cores, pass tpu='local'."
            )

    @classmethod
    def connect(
        cls, tpu: str | None = None, zone: str | None = None, project: str | None = None
    ) -> TPUClusterResolver:
        """Create a resolver and initialize its TPU in one call.

        >>> from replicax.cluster import TPUClusterResolver
        >>> strategy = rx.TPUStrategy(TPUClusterResolver.connect("local"))
        >>> strategy.num_replicas_in_sync
        8
        """
        resolver = cls(tpu, zone, project)
        connect_to_cluster(resolver)
        initialize_tpu_system(resolver)
        return resolver

    @property
    def devices(self) -> tuple[Device, ...]:
        """The TPU cores or, without a TPU, the devices that stand in for them. Starts JAX.

        >>> from replicax.cluster import TPUClusterResolver
        >>> TPUClusterResolver("local").devices == tuple(jax.devices())
        True
        """
        devices = tuple(resolve_devices(None))
        warn_of_stand_ins(devices)
        return devices

    def cluster_spec(self) -> ClusterSpec:
        """Empty: the processes of a slice find each other with `jax.distributed`."""
        return ClusterSpec({})

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Always "": the cluster is this process."""
        if task_type is not None or task_id is not None:
            self.cluster_spec().task_address(str(task_type), task_id or 0)  # raises: there are no tasks
        return master_url("", rpc_layer or self.rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: None = None
    ) -> dict[str, int]:
        """The number of cores of each process, or of devices that stand in for them: `{"TPU": 8}`."""
        refuse_config_proto(config_proto)
        return {"TPU": Topology(self.devices).num_tpus_per_task}

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        """How many cores and hosts there are.

        >>> from replicax.cluster import TPUClusterResolver
        >>> TPUClusterResolver("local").get_tpu_system_metadata().num_cores
        8
        """
        topology = Topology(self.devices)
        return TPUSystemMetadata(
            len(self.devices), topology.num_tasks, topology.num_tpus_per_task, topology, self.devices
        )

    def get_job_name(self) -> str:
        """The job of the processes of a TPU."""
        return "worker"


def warn_of_stand_ins(devices: Sequence[Device]) -> None:
    """Log a warning, once, if other devices stand in for TPU cores."""
    if devices[0].platform != "tpu":
        _warn_of_stand_ins(devices[0].platform.upper())


@functools.cache
def _warn_of_stand_ins(platform: str) -> None:
    _logger.warning(
        "JAX finds no TPU: its %s devices stand in for TPU cores. Results are the same, speed is not. If "
        "this machine has a TPU, install JAX for it (`pip install 'jax[tpu]'`).",
        platform,
    )


def connect_to_cluster(cluster_spec_or_resolver: ClusterResolver | ClusterSpec) -> None:
    """Do nothing if the cluster is this process alone; refuse other clusters.

    TensorFlow connects to the workers of a TPU here. With JAX, the program runs on them.

    Args:
        cluster_spec_or_resolver: a `TPUClusterResolver`, or any cluster without tasks.

    Raises:
        ClusterError: the cluster has tasks. Multi-worker strategies join them by themselves.

    >>> from replicax.cluster import TPUClusterResolver, connect_to_cluster
    >>> connect_to_cluster(TPUClusterResolver("local"))
    """
    spec = cluster_spec_or_resolver
    if isinstance(spec, ClusterResolver):
        spec = spec.cluster_spec()
    if not isinstance(spec, ClusterSpec):
        raise TypeError(f"connect_to_cluster takes a resolver or a ClusterSpec, got {spec!r}.")
    if spec:
        raise ClusterError(
            f"connect_to_cluster got a cluster with the jobs {', '.join(spec.jobs)}. JAX can't connect to "
            "other tasks from outside: run the program in each of them, and pass the resolver to "
            "MultiWorkerMirroredStrategy, which joins the cluster."
        )


def initialize_tpu_system(cluster_resolver: TPUClusterResolver | None = None) -> Topology:
    """Return the topology of the TPU, which JAX has initialized already.

    Args:
        cluster_resolver: a `TPUClusterResolver`; None means this process's TPU.

    Returns:
        The coordinates of the cores, for `DeviceAssignment.build`.

    >>> from replicax.cluster import TPUClusterResolver, initialize_tpu_system
    >>> initialize_tpu_system(TPUClusterResolver("local"))
    Topology(mesh_shape=[1, 2, 2, 2], 8 devices)
    """
    return Topology(_checked(cluster_resolver, "initialize_tpu_system").devices)


def shutdown_tpu_system(cluster_resolver: TPUClusterResolver | None = None) -> None:
    """Do nothing: JAX holds the TPU until the process exits.

    Args:
        cluster_resolver: a `TPUClusterResolver`, or None.

    >>> from replicax.cluster import shutdown_tpu_system
    >>> shutdown_tpu_system()
    """
    _checked(cluster_resolver, "shutdown_tpu_system")


def _checked(resolver: Any, what: str) -> TPUClusterResolver:
    if resolver is None:
        return TPUClusterResolver("local")
    if not isinstance(resolver, TPUClusterResolver):
        raise TypeError(f"{what} takes a TPUClusterResolver or None, got {resolver!r}.")
    return resolver
