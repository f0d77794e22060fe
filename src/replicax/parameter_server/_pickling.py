"""How functions, arguments and requests are pickled between the coordinator and the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax.parameter_server._ray import cloudpickle

__all__ = ["dumps", "loads", "pickle_with"]

_dump: Callable[[Any], bytes] | None = None


def pickle_with(dump: Callable[[Any], bytes]) -> None:
    """Let `dumps` use another function, for objects that Ray can't pickle.

    `loads` must be able to unpickle the result in a process that has not registered the function.
    """
    global _dump
    _dump = dump


def dumps(value: Any) -> bytes:
    """Pickle something for another process of the cluster."""
    return cloudpickle().dumps(value) if _dump is None else _dump(value)


def loads(pickled: bytes) -> Any:
    """Unpickle what another process has pickled."""
    return cloudpickle().loads(pickled)
