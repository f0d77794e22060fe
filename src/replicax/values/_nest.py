"""Merging replicas' results into one structure, and handing each replica its part of one.

Structures are JAX pytrees in which `None`, distributed values and variables are leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from replicax.errors import StructureMismatchError
from replicax.topology import ReplicaMesh
from replicax.values._distributed import Leaf, Mirrored, PerReplica, free, is_array, is_number

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
    """One replica's part of a larger object, which it names: replicas' parts merge back into it."""

    __slots__ = ()

    @property
    def container(self) -> Any:
        """The object that this is a part of."""
        raise NotImplementedError(f"{type(self).__name__} must define `container`.")


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, Leaf)


def flatten(structure: Any) -> tuple[list[Any], Any]:
    """The leaves of `structure` and its shape."""
    return jax.tree.flatten(structure, is_leaf=_is_leaf)


def map_leaves(fn: Callable[[Any], Any], structure: Any) -> Any:
    """`structure` with `fn` applied to every leaf."""
    return jax.tree.map(fn, structure, is_leaf=_is_leaf)


def select(structure: Any, local_index: int) -> Any:
    """The part of `structure` that one local replica sees; variables stay themselves.

    Arrays that are the same for all replicas may come from any device.
    """

    def part(leaf: Any) -> Any:
        return leaf.select(local_index) if isinstance(leaf, PerReplica | Mirrored) else free(leaf)

    return map_leaves(part, structure)


def split(structure: Any, count: int) -> list[Any]:
    """`select` for each of `count` local replicas; what is the same for all is one object for all."""
    leaves, treedef = flatten(structure)
    shared = [leaf if isinstance(leaf, PerReplica | Mirrored) else free(leaf) for leaf in leaves]

    def part(leaf: Any, index: int) -> Any:
        return leaf.select(index) if isinstance(leaf, PerReplica | Mirrored) else leaf

    return [treedef.unflatten(part(leaf, i) for leaf in shared) for i in range(count)]


def regroup(results: Sequence[Any], mesh: ReplicaMesh | None) -> Any:
    """Merge one structure for each local replica: one leaf if it is the same object everywhere.

    Anything else becomes a `PerReplica`; the copies of one variable become that variable. Where other
    processes have replicas too, what those hold is not known, so numbers are always a `PerReplica`.
    """
    if mesh is not None and not mesh.is_local:
        return _regroup_numbers_apart(results, mesh, is_number)
    return _regroup(results, lambda leaves: PerReplica(leaves, mesh=mesh))


def regroup_traced(results: Sequence[Any], mesh: ReplicaMesh | None) -> Any:
    """`regroup` for a program: arrays become `PerReplica`, whether or not they are one object."""
    return _regroup_numbers_apart(results, mesh, is_array)


def _regroup_numbers_apart(
    results: Sequence[Any], mesh: ReplicaMesh | None, is_apart: Callable[[Any], bool]
) -> Any:
    def wrap(leaves: Sequence[Any]) -> PerReplica:
        return PerReplica(leaves, mesh=mesh)

    treedef, columns = _columns(results)
    return treedef.unflatten(
        wrap(leaves) if any(map(is_apart, leaves)) else _merge(leaves, wrap) for leaves in columns
    )


def regroup_mirrored(results: Sequence[Any], mesh: ReplicaMesh | None) -> Any:
    """`regroup` for values known to be equal: leaves become `Mirrored`."""
    return _regroup(results, lambda leaves: Mirrored(leaves, mesh=mesh))


def regroup_apart(results: Sequence[Any], mesh: ReplicaMesh | None) -> Any:
    """`regroup` that makes every leaf a `PerReplica`, also one that is the same for all replicas."""
    treedef, columns = _columns(results)
    return treedef.unflatten(PerReplica(leaves, mesh=mesh) for leaves in columns)


def _regroup(results: Sequence[Any], wrap: Callable[[Sequence[Any]], Any]) -> Any:
    treedef, columns = _columns(results)
    return treedef.unflatten(_merge(leaves, wrap) for leaves in columns)


def _columns(results: Sequence[Any]) -> tuple[Any, Iterable[tuple[Any, ...]]]:
    """The structure of the first result, and for each leaf of it what the replicas have there."""
    first, treedef = flatten(results[0])
    rows = [first, *(_flatten_like(treedef, r, i) for i, r in enumerate(results[1:], 1))]
    return treedef, zip(*rows, strict=True)


def _flatten_like(treedef: Any, result: Any, replica: int) -> list[Any]:
    try:
        return treedef.flatten_up_to(result)
    except ValueError:
        raise StructureMismatchError(
            f"Replica 0 and replica {replica} have different structures here: {treedef} and "
            f"{flatten(result)[1]}. What replicas return, and what they pass to a merge_call, must be the "
            "same nesting of tuples, lists and dicts; use None in the places where a replica has nothing."
        ) from None


def _merge(leaves: Sequence[Any], wrap: Callable[[Sequence[Any]], Any]) -> Any:
    first = leaves[0]
    if isinstance(first, Component):
        container = first.container
        if all(isinstance(x, Component) and x.container is container for x in leaves):
            return container
    if all(leaf is first for leaf in leaves[1:]):
        return first
    return wrap(leaves)
