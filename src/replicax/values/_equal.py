"""Arrays that are known to be equal on all replicas: the results of `all_reduce` and `all_gather`.

In a replica such a result is a plain array, and nothing about it shows that the other replicas have the
same value. So this module remembers the arrays of each result while they are alive, and `merge_call` passes
them on as `Mirrored`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from replicax.values._mirrored import Mirrored
from replicax.values._nest import map_leaves
from replicax.values._per_replica import PerReplica

__all__ = ["mirror_equal", "remember_derived", "remember_equal"]

_results: dict[int, tuple[weakref.ref[Any], Any]] = {}
"""Maps the id of an array to the array and a token for the result it belongs to."""


def remember_equal(value: Any) -> Any:
    """Remember the arrays that the replicas get from a mirrored `value`; returns `value`."""
    if isinstance(value, Mirrored):
        result = object()
        for part in value.components:
            _remember(part, result)
    return value


def remember_derived(array: Any, original: Any, how: str) -> Any:
    """Remember an array that every replica derives in the same way from an equal one; returns `array`."""
    result = _result_of(original)
    if result is not None:
        _remember(array, (result, how))
    return array


def mirror_equal(structure: Any) -> Any:
    """`structure` with `Mirrored` in place of per-replica values that are known to be equal."""

    def mirror(leaf: Any) -> Any:
        if not isinstance(leaf, PerReplica) or leaf.is_global:
            return leaf
        parts = (leaf.select(0),) if leaf.is_local else leaf.components
        if not _are_equal(parts):
            return leaf
        return (
            Mirrored.from_whole(parts[0], leaf.mesh) if leaf.is_local else Mirrored(parts, mesh=leaf.mesh)
        )

    return map_leaves(mirror, structure)


def _are_equal(parts: Sequence[Any]) -> bool:
    result = _result_of(parts[0])
    return result is not None and all(_result_of(part) == result for part in parts[1:])


def _remember(array: Any, result: Any) -> None:
    key = id(array)
    _results[key] = (weakref.ref(array, lambda _: _results.pop(key, None)), result)


def _result_of(array: Any) -> Any:
    reference, result = _results.get(id(array), (None, None))
    return result if reference is not None and reference() is array else None
