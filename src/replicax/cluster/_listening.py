"""Makes this process listen only at the addresses that the cluster spec names.

By default Gloo, which connects CPU devices, listens at the address that the machine's name resolves to.
Here it listens at the host of the task's address, except in two cases: the host may belong to a Kubernetes
service or a router that forwards to this machine, or it may be this machine's name, resolved to a loopback
address that the others can't reach. The coordinator follows the same rules (`_coordinator_main.py`).
"""

from __future__ import annotations

import ipaddress
import os
import socket

import jax

from replicax._jax import use_gloo_at
from replicax.errors import ClusterError

__all__ = ["listen_at_own_address", "own_host", "refuse_encryption_settings"]

_ENCRYPTION_SETTINGS = (
    "jax_mtls_cert_file",
    "jax_mtls_key_file",
    "jax_mtls_ca_file",
    "jax_distributed_verify_secure_credentials",
)


def listen_at_own_address(address: str) -> None:
    """Make Gloo listen at this task's address."""
    if (host := own_host(address)) is not None:
        use_gloo_at(host)


def refuse_encryption_settings() -> None:
    """Raise if JAX is configured to encrypt its coordination service, which our coordinator can't do."""
    for name in _ENCRYPTION_SETTINGS:
        value = jax.config.values.get(name) or os.environ.get(name.upper(), "")
        if str(value).lower() not in ("", "0", "false", "none"):
            raise ClusterError(
                f"{name.upper()} is set, but the coordinator that a strategy starts is not encrypted. Call "
                "`jax.distributed.initialize` yourself before you create the strategy: JAX then encrypts "
                "its coordination service, and the strategy uses those processes."
            )


def own_host(address: str) -> str | None:
    """The host of `address` if this process can listen there and others can reach it, otherwise None."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        family, *_, found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(found)
    except OSError:  # unknown, or not this machine's
        return None
    resolved = str(found[0])
    is_loopback = ipaddress.ip_address(resolved.partition("%")[0]).is_loopback
    return None if is_loopback and host not in ("localhost", resolved) else host
