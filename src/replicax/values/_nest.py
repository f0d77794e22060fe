"""Merging replicas' results into one structure, and handing each replica its part of one.

Structures are JAX pytrees in which `None`, distributed values and variables are leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax._recording import Recorded, settled
from replicax.errors import StructureMismatchError
from replicax.topology import ReplicaMesh
from replicax.values._arrays import free, is_array, is_number
from replicax.values._distributed import Leaf
from replicax.values._mirrored import Mirrored
from replicax.values._per_replica import PerReplica

__all__ = [
    "Component",
    "flatten",
    "map_leaves",
    "regroup",
    "regroup_apart",
    "regroup_mirrored",
    "regroup_traced",
    "split",
    "select",
]


class Component(Leaf):
    """One replica's part of a `container`, which the replicas' parts merge back into."""

    __slots__ = ()

    @property
    def container(self) -> Any:
        """The object that this is a part of."""
        raise NotImplementedError(f"{type(self).__name__} must define `container`.")


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, Leaf)


def flatten(structure: Any) -> tuple[list[Any], Any]:
    """The leaves of `structure` and its treedef."""
    leaves, treedef = jax.tree.flatten(structure, is_leaf=_is_leaf)
    return _without_records(leaves), treedef


def _without_records(leaves: list[Any]) -> list[Any]:
    """`leaves`, with the plain values of recordings that have ended."""
    return [settled(leaf) if type(leaf) is Recorded else leaf for leaf in leaves]


def map_leaves(fn: Callable[[Any], Any], structure: Any) -> Any:
    """`structure` with `fn` applied to every leaf."""
    return jax.tree.map(fn, structure, is_leaf=_is_leaf)


def select(structure: Any, local_index: int) -> Any:
    """The part of `structure` that one local replica sees; variables are passed through.

    Arrays that are the same for all replicas may be on any device.
    """

    def part(leaf: Any) -> Any:
        return leaf.select(local_index) if isinstance(leaf, PerReplica | Mirrored) else free(leaf)

    return map_leaves(part, structure)


def split(structure: Any, count: int) -> list[Any]:
    """`select` for each of `count` local replicas; they share the leaves that are the same for all."""
    leaves, treedef = flatten(structure)
    replicas: list[list[Any]] = [[] for _ in range(count)]
    for leaf in leaves:
        if isinstance(leaf, PerReplica | Mirrored):
            for index, own in enumerate(replicas):
                own.append(leaf.select(index))
        else:
            shared = free(leaf)
            for own in replicas:
                own.append(shared)
    return list(map(treedef.unflatten, replicas))


def regroup(results: Sequence[Any], mesh: ReplicaMesh | None) -> Any:
    """Merge the structures of the local replicas into one.

    A leaf that is the same object everywhere is kept, the copies of one variable become that variable, and
    anything else becomes a `PerReplica`. If other processes have replicas too, their values are unknown, so
    numbers always become a `PerReplica`. Booleans do not: they are options rather than contributions.
    """
    is_apart = None if mesh is None or mesh.is_local else _is_contribution
    return _regroup(results, mesh, PerReplica, is_apart)


def _is_contribution(value: Any) -> bool:
    return is_number(value) and not isinstance(value, bool)


def regroup_traced(results: Sequence[Any], mesh: ReplicaMesh | None) -> Any:
    """`regroup` in a traced program: arrays become `PerReplica` even if they are one object."""
    return _regroup(results, mesh, PerReplica, is_array)


def regroup_mirrored(results: Sequence[Any], mesh: ReplicaMesh | None) -> Any:
    """`regroup` for values known to be equal: leaves become `Mirrored`."""
    return _regroup(results, mesh, Mirrored, None)


def regroup_apart(results: Sequence[Any], mesh: ReplicaMesh | None) -> Any:
    """`regroup` that makes every leaf a `PerReplica`, even one that is the same for all replicas."""
    return _regroup(results, mesh, PerReplica, lambda _: True)


def _regroup(
    results: Sequence[Any],
    mesh: ReplicaMesh | None,
    wrap: type[PerReplica] | type[Mirrored],
    is_apart: Callable[[Any], bool] | None,
) -> Any:
    """Merge structures leaf by leaf; wrap leaves that are `is_apart` even if they are one object."""
    first, treedef = flatten(results[0])
    rows = [first]
    for replica, result in enumerate(results[1:], 1):
        rows.append(_flatten_like(treedef, result, replica))
    merged = []
    for leaves in zip(*rows, strict=True):
        apart = is_apart is not None and any(map(is_apart, leaves))
        same = None if apart else _same_object(leaves)
        merged.append(wrap(leaves, mesh=mesh) if same is None else same[0])
    return treedef.unflatten(merged)


def _flatten_like(treedef: Any, result: Any, replica: int) -> list[Any]:
    try:
        return _without_records(treedef.flatten_up_to(result))
    except ValueError:
        raise StructureMismatchError(
            f"Replica 0 and replica {replica} have different structures here: {treedef} and "
            f"{flatten(result)[1]}. All replicas must return, and pass to a merge_call, the same nesting "
            "of tuples, lists and dicts; use None where a replica has nothing."
        ) from None


def _same_object(leaves: Sequence[Any]) -> tuple[Any] | None:
    """A 1-tuple of the object that all `leaves` are, or are components of; else None."""
    first = leaves[0]
    if isinstance(first, Component):
        container = first.container
        for leaf in leaves:
            if not isinstance(leaf, Component) or leaf.container is not container:
                return None
        return (container,)
    for leaf in leaves:
        if leaf is not first:
            return None
    return (first,)
