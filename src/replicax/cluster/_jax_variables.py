"""`JAXClusterResolver`: reads JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.

Kubeflow Trainer's JAX runtime sets these variables; a Kubernetes manifest or a script can do so, too. The
JAXJob of Kubeflow's older Training Operator sets them without the prefix, and the port in a variable of its
own.
"""

from __future__ import annotations

import os
from typing import final

from replicax.cluster._workers import (
    WorkersResolver,
    format_address,
    pad_addresses,
    read_number,
    read_variable,
)

__all__ = ["JAXClusterResolver", "has_jax_variables"]

_DEFAULT_PORT = "8476"  # JAX's own coordinator port on TPU hosts
_NAMES = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
_ADVICE = (
    "set JAX_COORDINATOR_ADDRESS to the 'host:port' of the first process, JAX_NUM_PROCESSES to the number "
    "of processes, and JAX_PROCESS_ID to the index of this one, from 0. Kubeflow's JAX runtime sets these."
)


def has_jax_variables() -> bool:
    """Whether all of the variables are set, with or without the prefix."""
    return all(f"JAX_{name}" in os.environ for name in _NAMES) or all(name in os.environ for name in _NAMES)


@final
class JAXClusterResolver(WorkersResolver):
    """A resolver for the environment variables that Kubeflow's JAX runtime sets.

    Args:
        rpc_layer: the protocol of the URLs that `master` returns.

    Raises:
        NotInClusterError: a variable is not set.
        ClusterError: a variable is not a number, or JAX_PROCESS_ID is too large.

    >>> from unittest.mock import patch
    >>> pod = {"JAX_COORDINATOR_ADDRESS": "train-node-0-0.train:29500", "JAX_NUM_PROCESSES": "3",
    ...        "JAX_PROCESS_ID": "1"}
    >>> from replicax.cluster import JAXClusterResolver
    >>> with patch.dict("os.environ", pod):
    ...     resolver = JAXClusterResolver()
    >>> resolver.task_id, resolver.cluster_spec()
    (1, ClusterSpec({'worker': ['train-node-0-0.train:29500', 'unknown', 'unknown']}))
    """

    def __init__(self, rpc_layer: str | None = None) -> None:
        old = "JAX_COORDINATOR_ADDRESS" not in os.environ and has_jax_variables()
        prefix = "" if old else "JAX_"
        address = read_variable(f"{prefix}COORDINATOR_ADDRESS", _ADVICE)
        if not address.rpartition(":")[2].isdecimal():
            port = os.environ.get(f"{prefix}COORDINATOR_PORT", _DEFAULT_PORT)
            address = format_address(address, port)
        num_processes = read_number(f"{prefix}NUM_PROCESSES", _ADVICE)
        index = read_number(f"{prefix}PROCESS_ID", _ADVICE)
        super().__init__(pad_addresses(address, num_processes), index, rpc_layer)
