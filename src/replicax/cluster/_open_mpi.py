"""`OpenMPIClusterResolver`: processes started by Open MPI's `mpirun`; no MPI library is needed.

Open MPI 4 gives its processes the address of `mpirun`, which JAX's own detection reads. Open MPI 5 gives
them its host name. Either way we assume that rank 0 runs on the same host as `mpirun`, as it does by
default.
"""

from __future__ import annotations

import os
import re
from typing import final

from replicax._jax import open_mpi_coordinator
from replicax.cluster._gpus import set_visible_share
from replicax.cluster._workers import WorkersResolver, format_address, pad_addresses, read_number
from replicax.errors import ClusterError

__all__ = ["OpenMPIClusterResolver", "started_by_open_mpi"]

_NAMESPACE = re.compile(r"prterun-(.+)-(\d+)@\d+")  # of Open MPI 5: the host and the process id of mpirun
_PORTS = 2**12  # like JAX's detection: one of the last 4096 ports
_ADVICE = "start the program with Open MPI's `mpirun`."


def started_by_open_mpi() -> bool:
    """Whether `mpirun` started this process as one of several."""
    return os.environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1"


@final
class OpenMPIClusterResolver(WorkersResolver):
    """A resolver for processes started by Open MPI's `mpirun`.

    Args:
        coordinator: 'host:port' of rank 0. None means the host of `mpirun`, or the loopback interface if
            all ranks run on one host, and a port derived from the job.
        auto_set_gpu: set CUDA_VISIBLE_DEVICES to this process's share of the host's GPUs; must happen
            before JAX starts.
        rpc_layer: the protocol of the URLs that `master` returns.

    Raises:
        NotInClusterError: `mpirun` did not start this process.
        ClusterError: the host of `mpirun` can't be found.

    >>> from unittest.mock import patch
    >>> rank2 = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2",
    ...          "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    ...          "PMIX_NAMESPACE": "prterun-node1-3571@1"}
    >>> from replicax.cluster import OpenMPIClusterResolver
    >>> with patch.dict("os.environ", rank2):
    ...     resolver = OpenMPIClusterResolver()
    >>> resolver.task_id, resolver.master()
    (2, 'node1:65011')
    """

    def __init__(
        self, coordinator: str | None = None, auto_set_gpu: bool = True, rpc_layer: str | None = None
    ) -> None:
        size, rank = (read_number(f"OMPI_COMM_WORLD_{name}", _ADVICE) for name in ("SIZE", "RANK"))
        num_local = read_number("OMPI_COMM_WORLD_LOCAL_SIZE", _ADVICE)
        if coordinator is None:
            coordinator = _coordinator(loopback=num_local == size)
        super().__init__(pad_addresses(coordinator, size), rank, rpc_layer)
        if auto_set_gpu:
            local_rank = read_number("OMPI_COMM_WORLD_LOCAL_RANK", _ADVICE)
            set_visible_share(local_rank, num_local, type(self).__name__)


def _coordinator(loopback: bool) -> str:
    host, port = _host_and_port()
    return format_address("127.0.0.1" if loopback else host, os.environ.get("JAX_COORDINATOR_PORT", port))


def _host_and_port() -> tuple[str, str]:
    if "OMPI_MCA_orte_hnp_uri" in os.environ:
        host, _, port = open_mpi_coordinator().rpartition(":")
        return host, port
    match = _NAMESPACE.fullmatch(os.environ.get("PMIX_NAMESPACE", ""))
    if match is None:
        raise ClusterError(
            "OpenMPIClusterResolver finds neither OMPI_MCA_orte_hnp_uri (Open MPI 4) nor the host of "
            "mpirun in PMIX_NAMESPACE (Open MPI 5). Pass OpenMPIClusterResolver(coordinator='host:port') "
            "with the host of rank 0."
        )
    return match[1], str(int(match[2]) % _PORTS + 2**16 - _PORTS)
