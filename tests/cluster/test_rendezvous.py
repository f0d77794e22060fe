"""Joining: workers that are missing, that come twice or with another cluster, and ports that are in use."""

import concurrent.futures
import contextlib
import os
import socket
import threading

import pytest

from replicax.cluster._coordinator import Rendezvous, start_coordinator, stop_coordinator
from replicax.cluster._hub import Hub
from replicax.cluster._options import ClusterOptions
from replicax.cluster._wire import Connection
from replicax.errors import ClusterError, ClusterTimeoutError


@contextlib.contextmanager
def hub(tasks):
    """A hub in a thread; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    parent, ours = socket.socketpair()
    served = Hub(listener, parent, tasks, 60.0, lambda: "127.0.0.1:1")
    thread = threading.Thread(target=served.serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ours.close()
        thread.join(30)
        listener.close()
        parent.close()


def meet(address, tasks, ranks, timeout_seconds=30.0):
    """What the workers get: the address of JAX's service, or an error."""

    def join(rank):
        try:
            connection, service = Rendezvous(address, rank, tasks, timeout_seconds).join()
        except (ClusterError, ClusterTimeoutError) as error:
            return error
        connection.close()
        return service

    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(join, ranks))


def test_all_workers_get_the_address_of_jaxs_service():
    with hub(["a", "b", "c"]) as address:
        assert meet(address, ["a", "b", "c"], [0, 1, 2]) == ["127.0.0.1:1"] * 3


def test_missing_workers_are_named_after_the_timeout():
    with hub(["a", "b", "c"]) as address:
        errors = meet(address, ["a", "b", "c"], [0, 2], timeout_seconds=0.5)
    assert all(isinstance(error, ClusterTimeoutError) for error in errors)
    assert all("timed out" in str(error) and "did not join: b." in str(error) for error in errors)


def test_who_times_out_later_does_not_blame_who_did_first():
    with hub(["a", "b", "c"]) as address, concurrent.futures.ThreadPoolExecutor() as pool:
        host, port = address.split(":")
        connection = Connection(socket.create_connection((host, int(port))))
        connection.send({"rank": 0, "tasks": ["a", "b", "c"], "pid": 1, "host": "h"})
        other = pool.submit(meet, address, ["a", "b", "c"], [2])
        while {"kind": "present", "ranks": [0, 2]} not in connection.receive(30):
            pass
        connection.send({"kind": "timed out"})
        connection.close()
        (error,) = other.result()
    assert isinstance(error, ClusterTimeoutError)
    assert "a timed out" in str(error) and "did not join: b." in str(error)


def test_two_workers_with_one_rank_are_named_at_once():
    with hub(["a", "b", "c"]) as address:
        host, port = address.split(":")
        connection = Connection(socket.create_connection((host, int(port))))
        connection.send({"rank": 0, "tasks": ["a", "b", "c"], "pid": 1, "host": "h"})
        while {"kind": "present", "ranks": [0]} not in connection.receive(30):
            pass
        errors = meet(address, ["a", "b", "c"], [1, 1])
        while not (refused := [m for m in connection.receive(30) if m["kind"] == "refused"]):
            pass
        connection.close()
    assert all(isinstance(error, ClusterError) for error in errors)
    for reason in [refused[0]["reason"], *map(str, errors)]:
        assert "Two processes claim to be rank 1 (b)" in reason
        assert str(os.getpid()) in reason


def test_different_clusters_are_named_at_once():
    with hub(["a", "b"]) as address:
        (error,) = meet(address, ["a", "b", "c"], [2])
    assert "rank 2 of another cluster" in str(error)
    assert "the 3 tasks a, b, c" in str(error) and "the 2 tasks a, b" in str(error)


def test_a_worker_that_ends_before_all_have_joined_is_named():
    with hub(["a", "b", "c"]) as address, concurrent.futures.ThreadPoolExecutor() as pool:
        host, port = address.split(":")
        connection = Connection(socket.create_connection((host, int(port))))
        connection.send({"rank": 0, "tasks": ["a", "b", "c"], "pid": 1, "host": "h"})
        other = pool.submit(meet, address, ["a", "b", "c"], [1])
        while {"kind": "present", "ranks": [0, 1]} not in connection.receive(30):
            pass
        connection.close()
        (error,) = other.result()
    assert isinstance(error, ClusterError)
    assert "rank 0 (a) ended before all workers had joined" in str(error)


def test_another_program_at_the_address_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        (error,) = meet(f"127.0.0.1:{listener.getsockname()[1]}", ["a", "b"], [1])
        thread.join()
    assert "another program listens there" in str(error)


def test_nobody_at_the_address_is_named_after_the_timeout():
    with socket.socket() as reserved:  # bound, but it does not listen
        reserved.bind(("127.0.0.1", 0))
        (error,) = meet(f"127.0.0.1:{reserved.getsockname()[1]}", ["a", "b"], [1], timeout_seconds=0.3)
    assert isinstance(error, ClusterTimeoutError)
    assert str(error).startswith("b timed out after 0.3 s at 127.0.0.1:")


def test_a_port_in_use_is_an_error_of_the_first_worker():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"the port is in use. Choose a free port"):
            start_coordinator(address, ["a", "b"], ClusterOptions())


def test_an_address_that_does_not_exist_is_an_error_of_the_first_worker():
    with pytest.raises(ClusterError, match=r"can't listen at its address no\.such"):
        start_coordinator("no.such.host.invalid:1", ["a", "b"], ClusterOptions())


def test_the_coordinators_process_ends_with_the_process_that_started_it():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    start_coordinator(address, ["a", "b"], ClusterOptions())
    process = stop_coordinator()
    assert process is not None and process.wait(60) == 0


@pytest.mark.parametrize("seconds", [0, -1.0, True, "60"])
def test_timeouts_are_positive_numbers(seconds):
    with pytest.raises((TypeError, ValueError), match="stuck_timeout_seconds"):
        ClusterOptions(stuck_timeout_seconds=seconds)
