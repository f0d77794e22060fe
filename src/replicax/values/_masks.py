"""Padded batches: which rows of a value are examples, and which only fill it up.

A batch that was padded carries a *mask*, a `PerReplica` of booleans with one entry for each row. What a
replica function computes from it row by row has the same number of rows, and carries the mask on, so that
a reduction over examples (`strategy.reduce(op, value, axis=0)`, `strategy.gather`) leaves the padding out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from replicax.errors import CollectiveError
from replicax.topology import ReplicaMesh
from replicax.values._distributed import PerReplica, is_array
from replicax.values._nest import flatten, map_leaves

__all__ = ["attach_masks", "find_masks", "without_padding"]


def find_masks(structure: Any) -> tuple[PerReplica, ...]:
    """The masks of the padded batches in `structure`, one for each number of rows.

    A row that is made of several batches is an example if it is one in all of them.
    """
    found: dict[int, PerReplica] = {}
    for leaf in flatten(structure)[0]:
        mask = leaf.example_mask if isinstance(leaf, PerReplica) else None
        if mask is None:
            continue
        rows = _rows(mask)
        if rows not in found:
            found[rows] = mask
        elif found[rows] is not mask:
            found[rows] = _both(found[rows], mask)
    return tuple(found.values())


def attach_masks(structure: Any, masks: Sequence[PerReplica], mesh: ReplicaMesh) -> Any:
    """`structure`, in which values with as many rows as a mask carry it."""
    if not masks:
        return structure
    by_rows = {_rows(mask): mask for mask in masks}

    def attach(leaf: Any) -> Any:
        if is_array(leaf) and mesh.num_replicas == 1 and np.ndim(leaf):
            if leaf.shape[0] not in by_rows:
                return leaf
            leaf = PerReplica.from_global(leaf, mesh, scalar=False)
        uniform = leaf.uniform if isinstance(leaf, PerReplica) else None
        mask = by_rows.get(uniform.shape[0]) if uniform is not None and uniform.shape else None
        return leaf if mask is None else leaf.with_mask(mask)

    return map_leaves(attach, structure)


def without_padding(value: PerReplica, mesh: ReplicaMesh) -> PerReplica:
    """`value` with zeros in the rows that are padding."""
    mask = value.example_mask
    assert mask is not None
    if value.is_local:
        return PerReplica.from_local(_zeroed(value.select(0), mask.select(0)), mesh)
    array, scalar = value.to_global(mesh)
    return PerReplica.from_global(_zeroed(array, mask.to_global(mesh)[0]), mesh, scalar=scalar)


def _zeroed(rows: Any, mask: Any) -> Any:
    return jnp.where(mask.reshape(mask.shape + (1,) * (rows.ndim - 1)), rows, jnp.zeros((), rows.dtype))


def _rows(mask: PerReplica) -> int:
    uniform = mask.uniform
    assert uniform is not None
    return uniform.shape[0]


def _both(one: PerReplica, other: PerReplica) -> PerReplica:
    mesh = one.mesh
    if mesh is None or other.mesh is not mesh:
        raise CollectiveError("Padded batches of different strategies can't be used together.")
    array = one.to_global(mesh)[0] & other.to_global(mesh)[0]
    return PerReplica.from_global(array, mesh, scalar=False)
