"""Ray, imported when a cluster is used: it is optional and takes a second to import."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "LOOPBACK",
    "START_NODE",
    "actor_options",
    "cloudpickle",
    "compute_with",
    "library",
    "on_loopback",
]

LOOPBACK = "127.0.0.1"
START_NODE = """
from ray._private import services
services.resolve_ip_for_localhost = lambda host: host
from ray.scripts.scripts import main
main()
"""
"""The program `ray`, which uses 127.0.0.1 as `on_loopback` does in this process."""


def library() -> Any:
    """The module `ray`."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(
            "rx.ParameterServerStrategy needs Ray, which is optional: pip install 'replicax[ray]'."
        ) from error


def cloudpickle() -> Any:
    """Ray's pickle, which also takes functions of the main program."""
    library()
    return importlib.import_module("ray.cloudpickle")


def actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """The options of an actor that is given these resources and never restarted by Ray."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {named[key]: value for key, value in resources.items() if key in named}
    other = {key: value for key, value in resources.items() if key not in named}
    return {"num_cpus": 0, **options, "resources": other, "max_restarts": 0}


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Make Ray listen on 127.0.0.1 only, so that other machines can't reach it.

    On Linux, Ray replaces that address with another one of the machine and listens on all interfaces.
    """
    library()
    services: Any = importlib.import_module("ray._private.services")
    before, services.resolve_ip_for_localhost = services.resolve_ip_for_localhost, lambda host: host
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = before


def compute_with(num_threads: int | None) -> None:
    """Let XLA compute with so many threads on the CPU, unless the user has set their number.

    XLA reads NPROC when JAX starts its CPU backend, which must not have happened yet.
    """
    if num_threads is not None:
        os.environ.setdefault("NPROC", str(num_threads))
