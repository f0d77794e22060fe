"""`TorchrunClusterResolver`: reads the environment variables of PyTorch's `torchrun`.

They are RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT and, for the processes of one host, LOCAL_RANK and
LOCAL_WORLD_SIZE. Many other launchers set them, too.
"""

from __future__ import annotations

import os
from typing import final

from replicax.cluster._gpus import set_visible_share
from replicax.cluster._workers import (
    WorkersResolver,
    format_address,
    pad_addresses,
    read_number,
    read_variable,
)

__all__ = ["TorchrunClusterResolver", "started_by_torchrun"]

_ADVICE = "start the program with `torchrun`, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."


def started_by_torchrun() -> bool:
    """Whether `torchrun` itself started this process; RANK and WORLD_SIZE alone prove nothing."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


@final
class TorchrunClusterResolver(WorkersResolver):
    """A resolver for processes started by `torchrun`, or by something that sets the same variables.

    Args:
        port: the port of the first worker. None means MASTER_PORT, or the next one if torchrun's own store
            listens on MASTER_PORT.
        auto_set_gpu: if LOCAL_RANK is set, set CUDA_VISIBLE_DEVICES to this process's share of the host's
            GPUs; must happen before JAX starts.
        rpc_layer: the protocol of the URLs that `master` returns.

    Raises:
        NotInClusterError: a variable is not set.
        ClusterError: a variable is not a number, or RANK is too large.

    >>> from unittest.mock import patch
    >>> process = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host0", "MASTER_PORT": "29500"}
    >>> from replicax.cluster import TorchrunClusterResolver
    >>> with patch.dict("os.environ", process):
    ...     resolver = TorchrunClusterResolver()
    >>> resolver.task_id, resolver.master()
    (1, 'host0:29500')
    """

    def __init__(
        self, port: int | None = None, auto_set_gpu: bool = True, rpc_layer: str | None = None
    ) -> None:
        address = format_address(
            read_variable("MASTER_ADDR", _ADVICE), _free_port() if port is None else port
        )
        num_workers, rank = read_number("WORLD_SIZE", _ADVICE), read_number("RANK", _ADVICE)
        super().__init__(pad_addresses(address, num_workers), rank, rpc_layer)
        if auto_set_gpu and "LOCAL_RANK" in os.environ and "LOCAL_WORLD_SIZE" in os.environ:
            num_local = read_number("LOCAL_WORLD_SIZE", _ADVICE)
            set_visible_share(read_number("LOCAL_RANK", _ADVICE), num_local, type(self).__name__)


def _free_port() -> int:
    taken = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return read_number("MASTER_PORT", _ADVICE) + taken
