"""Ray, imported when a cluster is used: it is optional and takes a second to import."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

__all__ = ["LOOPBACK", "LOOPBACK_ENVIRONMENT", "cloudpickle", "library", "on_loopback"]

LOOPBACK = "127.0.0.1"
LOOPBACK_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""For a process of Ray: what `on_loopback` does in this one."""


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


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Let Ray use 127.0.0.1 as it is, so that nothing listens where other machines can reach it.

    On Linux it replaces that address by another one of the machine, and listens at all of them.
    """
    library()
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
