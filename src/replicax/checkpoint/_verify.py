"""Verifies a checkpoint before anything is restored from it, so that a damaged one changes nothing."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from replicax.checkpoint._cluster import agree_to_restore
from replicax.checkpoint._entries import sizes_of
from replicax.checkpoint._pieces import is_divided
from replicax.checkpoint._saved import Saved
from replicax.errors import CheckpointError
from replicax.variables import Variable

__all__ = ["verify"]

_KEPT_BYTES = 128 * 2**20
"""How many bytes of what is restored now stay in memory, and need not be read again."""
_PENDING_BYTES = 2**30
"""How many bytes stay in memory for variables that do not exist yet; the rest is read on creation."""


def verify(saved: Saved, things: Mapping[str, Any], where: str) -> None:
    """Check all arrays of a checkpoint that this process needs for `things`, or may need later.

    If variables are sharded over processes, each process reads only its part. The processes then exchange
    their findings, and all raise if one of them found damage.

    Raises:
        CheckpointError: an array is damaged.
    """
    problem = _problem(saved, things)
    if any(_is_among_processes(thing) for thing in things.values()):
        problem = agree_to_restore(pathlib.Path(where), problem)
    if problem is not None:
        saved.is_damaged = True
        raise CheckpointError(problem)


def _problem(saved: Saved, things: Mapping[str, Any]) -> str | None:
    here: dict[str, int] = {}
    later: dict[str, int] = {}
    for path, entry in saved.document["entries"].items():
        sizes = here if path in things else later
        sizes |= sizes_of(path, entry, things.get(path))
    try:
        saved.verify(here, _KEPT_BYTES)
        saved.verify(later, _PENDING_BYTES)
    except CheckpointError as error:
        return str(error)
    return None


def _is_among_processes(thing: Any) -> bool:
    if not isinstance(thing, Variable) or thing.mesh is None:
        return False
    return len(thing.mesh.processes) > 1 and is_divided(thing)
