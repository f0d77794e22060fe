"""Processes of a cluster listen only at the addresses that the cluster names."""

import os
import socket
from pathlib import Path

import jax.numpy as jnp
import pytest

import replicax as rx
from replicax import testing
from replicax.cluster._listening import own_host, refuse_encryption_settings
from replicax.errors import ClusterError


def listening_addresses():
    """Where this process and its children listen, as the kernel writes addresses."""
    sockets = set()
    for pid in [os.getpid(), *children(os.getpid())]:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(file))
            except OSError:  # it was closed meanwhile
                continue
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.append(fields[1].rpartition(":")[0])
    return found


def children(pid):
    """The coordinator is one."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            yield from map(int, (task / "children").read_text().split())
        except OSError:  # the thread has ended
            continue


def join_and_listen():
    strategy = rx.MultiWorkerMirroredStrategy()
    ones = strategy.run(lambda: jnp.float32(1))
    assert float(strategy.reduce("SUM", ones, axis=None)) == 2.0
    return listening_addresses()


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1 as IPv4 and IPv6


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")
def test_workers_on_the_loopback_interface_listen_nowhere_else():
    first, second = testing.run(join_and_listen, num_workers=2)
    assert first and second
    assert set(first) | set(second) <= LOOPBACK


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.5", "[::1]"])
def test_an_address_of_this_machine_is_listened_at(host):
    if host == "[::1]" and not has_ipv6_loopback():
        pytest.skip("no IPv6 here")
    assert own_host(f"{host}:2222") == host.strip("[]")


def has_ipv6_loopback():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_left_to_jax(host):
    assert own_host(f"{host}:2222") is None


def test_a_name_that_is_a_loopback_address_only_here_is_left_to_jax(monkeypatch):
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: answer)
    assert own_host("host0:2222") is None


def test_settings_for_encryption_are_not_ignored(monkeypatch):
    refuse_encryption_settings()
    monkeypatch.setenv("JAX_DISTRIBUTED_VERIFY_SECURE_CREDENTIALS", "false")
    refuse_encryption_settings()
    monkeypatch.setenv("JAX_MTLS_CERT_FILE", "/etc/certificate.pem")
    with pytest.raises(
        ClusterError, match=r"JAX_MTLS_CERT_FILE is set.*`jax.distributed.initialize` yourself"
    ):
        refuse_encryption_settings()
