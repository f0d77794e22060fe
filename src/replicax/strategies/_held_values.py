"""Flattening structures with variables, for the collectives."""

from __future__ import annotations

from typing import Any

import jax

from replicax.values import IndexedSlices, Leaf
from replicax.variables import Variable, VariableCopy

__all__ = ["flatten_values"]


def flatten_values(structure: Any) -> tuple[list[Any], Any]:
    """The leaves and treedef of `structure`, with variables replaced by what the replicas hold."""

    def is_leaf(x: Any) -> bool:
        return x is None or isinstance(x, IndexedSlices | Leaf)

    leaves, treedef = jax.tree.flatten(structure, is_leaf=is_leaf)
    return [x.held() if isinstance(x, Variable | VariableCopy) else x for x in leaves], treedef
