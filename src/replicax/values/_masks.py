"""Padded batches: which rows of a value are examples, and which are padding.

A padded batch carries a *mask*, a `PerReplica` of booleans with one entry per row. Values computed row by
row from the batch inherit the mask, so that a reduction over examples (`strategy.gather`, or
`strategy.reduce(op, value, axis=0)`) ignores the padding. `contexts/_examples.py` finds these values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import jax.numpy as jnp
import numpy as np

from replicax.errors import CollectiveError
from replicax.topology import ReplicaMesh
from replicax.values._arrays import is_array
from replicax.values._nest import flatten
from replicax.values._per_replica import PerReplica

__all__ = [
    "FIND",
    "Find",
    "batch_numbers",
    "find_masks",
    "intersection",
    "masked",
    "num_rows",
    "without_padding",
]


@final
class Find:
    """The default of `example_mask`: the mask of the padded batch that a value was computed from."""

    def __repr__(self) -> str:
        return "the mask of its batch"


FIND: Final = Find()


def masked(leaves: list[Any], example_mask: Any, mesh: ReplicaMesh) -> list[Any]:
    """`leaves` with the mask that the user chose: a batch's mask, None, or `FIND`."""
    if isinstance(example_mask, Find):
        return leaves
    if not isinstance(example_mask, PerReplica | None):
        raise TypeError(
            f"example_mask={example_mask!r}: pass the `example_mask` of a padded batch, or None if all "
            "rows are examples."
        )
    return [_with_mask(leaf, example_mask, mesh) for leaf in leaves]


def _with_mask(leaf: Any, mask: PerReplica | None, mesh: ReplicaMesh) -> Any:
    if mask is not None and is_array(leaf) and mesh.num_replicas == 1 and np.ndim(leaf):
        leaf = PerReplica.from_global(leaf, mesh, scalar=False)
    if not isinstance(leaf, PerReplica):
        return leaf
    rows = None if mask is None else num_rows(mask)
    uniform = leaf.uniform
    if rows is not None and (uniform is None or uniform.shape[:1] != (rows,)):
        shape = "different shapes" if uniform is None else f"shape {uniform.shape}"
        raise CollectiveError(
            f"example_mask has {rows} rows on each replica, but the value has {shape} there. They must "
            "have the same number of rows."
        )
    return leaf.with_mask(mask)


def find_masks(structure: Any) -> tuple[PerReplica, ...]:
    """The masks of the padded batches in `structure`, one for each batch."""
    found: dict[int, PerReplica] = {}
    for leaf in flatten(structure)[0]:
        mask = leaf.mask if isinstance(leaf, PerReplica) else None
        if mask is not None:
            found.setdefault(_identity(mask), mask)
    return tuple(found.values())


def batch_numbers(leaves: Sequence[Any], masks: Sequence[PerReplica]) -> list[int | None]:
    """The position of each leaf's mask in `masks`, or None if it has no mask."""
    places = {_identity(mask): i for i, mask in enumerate(masks)}
    own = [leaf.mask if isinstance(leaf, PerReplica) else None for leaf in leaves]
    return [None if mask is None else places[_identity(mask)] for mask in own]


def _identity(mask: PerReplica) -> int:
    """Identifies a batch: all of its arrays share one mask array, and no other batch does."""
    return id(mask if mask._array is None else mask._array)


def without_padding(value: PerReplica, mesh: ReplicaMesh) -> PerReplica:
    """`value` with zeros in the rows that are padding."""
    mask = value.mask
    assert mask is not None
    if value.is_local:
        return PerReplica.from_local(_zeroed(value.select(0), mask.select(0)), mesh)
    array, scalar = value.to_global(mesh)
    return PerReplica.from_global(_zeroed(array, mask.to_global(mesh)[0]), mesh, scalar=scalar)


def _zeroed(rows: Any, mask: Any) -> Any:
    return jnp.where(mask.reshape(mask.shape + (1,) * (rows.ndim - 1)), rows, jnp.zeros((), rows.dtype))


def num_rows(mask: PerReplica) -> int:
    """The number of rows per replica of a batch with this mask."""
    uniform = mask.uniform
    assert uniform is not None
    return uniform.shape[0]


def intersection(masks: Sequence[PerReplica]) -> PerReplica:
    """The mask of rows that combine several batches: True where all of them have an example."""
    both = masks[0]
    for mask in masks[1:]:
        both = _both(both, mask)
    return both


def _both(one: PerReplica, other: PerReplica) -> PerReplica:
    mesh = one.mesh
    if mesh is None or other.mesh is not mesh:
        raise CollectiveError(
            "Padded batches of different strategies can't be used together. Distribute all of them with "
            "the strategy that runs the step."
        )
    if one.is_local:
        return PerReplica.from_local(one.select(0) & other.select(0), mesh)
    array = one.to_global(mesh)[0] & other.to_global(mesh)[0]
    return PerReplica.from_global(array, mesh, scalar=False)
