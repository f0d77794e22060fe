"""What a compiled step returns: its structure, filled with the arrays that the program returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np

from replicax._jax import first_copy, is_tracer
from replicax._recording import settled
from replicax.errors import TracingError
from replicax.topology import ReplicaMesh
from replicax.values import Component, Mirrored, PerReplica, is_array, pad_to
from replicax.variables import is_variable

__all__ = ["Outputs", "distributed_in", "mask_leaves", "shared_masks"]


def mask_leaves(treedef: Any) -> list[int]:
    """Which leaves are the masks of padded batches."""
    masks = [node.mask for node in distributed_in(treedef) if isinstance(node, PerReplica)]
    return [leaf for mask in masks if mask is not None for leaf in jax.tree.leaves(mask)]


def shared_masks(masks: list[int], leaves: list[Any]) -> tuple[int, ...]:
    """For each mask, the first mask that is the same array: these arguments belong to one batch."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(leaves[i]), i) for i in masks)


def distributed_in(treedef: Any) -> list[PerReplica | Mirrored]:
    """The distributed values in a structure, with the indices of their leaves as components."""
    numbers = treedef.unflatten(range(treedef.num_leaves))
    nodes = jax.tree.leaves(numbers, is_leaf=lambda x: isinstance(x, PerReplica | Mirrored))
    return [node for node in nodes if isinstance(node, PerReplica | Mirrored)]


def _check_constant(leaf: Any) -> None:
    """Raise if an object that is returned unchanged has a tracer in an attribute."""
    for name, value in getattr(leaf, "__dict__", {}).items():
        if is_tracer(value) and not isinstance(leaf, type):
            raise TracingError(
                f"A compiled step returns a {type(leaf).__name__} whose attribute {name!r} is a traced "
                "array. JAX does not look into such an object, so the array would have no value. Return a "
                "tuple or a dict, or make the class a pytree (jax.tree_util.register_dataclass)."
            )


def _is_per_replica(value: Any) -> bool:
    return isinstance(value, PerReplica)


def _own_components(value: Any) -> Any:
    """A program's per-replica value with only this process's components, instead of those of all."""
    if not isinstance(value, PerReplica) or value.num_components is None or value.mesh is None:
        return value
    mesh, components = value.mesh, value.components
    own = [components[i] for i in mesh.local_replica_ids]
    shapes = [np.shape(part) for part in components]
    if len(set(shapes)) == 1:
        return PerReplica(own, mesh=mesh)
    sizes = tuple(shape[0] if shape else 1 for shape in shapes)
    rows = {(shape[1:], part.dtype) for shape, part in zip(shapes, components, strict=True) if shape}
    if len(rows) > 1 or () in shapes:
        return PerReplica(own, mesh=mesh, sizes=sizes)
    padded = [pad_to(part, (max(sizes), *part.shape[1:])) for part in own]
    return PerReplica.from_padded(mesh.assemble(padded), mesh, sizes)


@final
@dataclasses.dataclass
class Outputs:
    """The structure of a step's result, and which of its leaves are arrays."""

    treedef: Any = None
    leaves: list[Any] = dataclasses.field(default_factory=list)
    dynamic: list[int] = dataclasses.field(default_factory=list)
    sharded: list[bool] = dataclasses.field(default_factory=list)
    apart: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    plain: list[int] = dataclasses.field(default_factory=list)
    same: dict[int, int] = dataclasses.field(default_factory=dict)
    """For each mask, the first mask that is the same array in the program: their values share a batch."""
    rebuild: Callable[[list[Any]], Any] = lambda arrays: arrays
    """Builds the result of a run from its arrays."""

    def take(self, result: Any) -> list[Any]:
        """Return the arrays of `result`, and store the rest."""
        self.leaves, self.treedef = jax.tree.flatten(result, is_leaf=is_variable)
        self.leaves = [x.container if isinstance(x, Component) else settled(x) for x in self.leaves]
        self.dynamic = [i for i, leaf in enumerate(self.leaves) if is_array(leaf)]
        arrays = [self.leaves[i] for i in self.dynamic]
        masks = [self.dynamic.index(i) for i in mask_leaves(self.treedef)]
        self.same = dict(zip(masks, shared_masks(masks, arrays), strict=True))
        for i in self.dynamic:
            self.leaves[i] = None
        for leaf in self.leaves:
            _check_constant(leaf)
        self._sort()
        return arrays

    def _sort(self) -> None:
        """Find the shards of per-replica values, their separate components, and the plain arrays."""
        shards, apart, mirrored = set(), {}, set()
        for node in distributed_in(self.treedef):
            if isinstance(node, Mirrored):
                mirrored.update(jax.tree.leaves(node))
            elif node.num_components is not None:
                apart.update({leaf: replica for replica, leaf in enumerate(node.components)})
                shards.update(jax.tree.leaves(node.mask))
            else:
                shards.update(jax.tree.leaves(node))
        self.sharded = [i in shards for i in self.dynamic]
        self.apart = [(n, apart[i]) for n, i in enumerate(self.dynamic) if i in apart]
        special = shards | mirrored | set(apart)
        self.plain = [n for n, i in enumerate(self.dynamic) if i not in special]

    def rebuilder(self, mesh: ReplicaMesh | None) -> Callable[[list[Any]], Any]:
        """The function that builds a result, for a step on `mesh`."""
        rebuild, same = self._make_plain_rebuilder(mesh), self.same
        if all(i == first for i, first in same.items()):
            return rebuild

        def rebuild_batches(arrays: list[Any]) -> Any:
            for i, first in same.items():
                arrays[i] = arrays[first]
            return rebuild(arrays)

        return rebuild_batches

    def _make_plain_rebuilder(self, mesh: ReplicaMesh | None) -> Callable[[list[Any]], Any]:
        treedef, static, dynamic = self.treedef, self.leaves, self.dynamic
        if mesh is None or not (self.plain or self.apart):
            convert = None
        else:
            convert = functools.partial(self._convert, mesh)
        if len(dynamic) == len(static) and convert is None:
            return treedef.unflatten

        def rebuild(arrays: list[Any]) -> Any:
            if convert is not None:
                convert(arrays)
            if len(dynamic) == len(static):
                return treedef.unflatten(arrays)
            leaves = list(static)
            for i, array in zip(dynamic, arrays, strict=True):
                leaves[i] = array
            return treedef.unflatten(leaves)

        if mesh is not None and not mesh.is_local and self.apart:
            return lambda arrays: jax.tree.map(_own_components, rebuild(arrays), is_leaf=_is_per_replica)
        return rebuild

    def only_result(self, mesh: ReplicaMesh | None) -> Any:
        """What `Program` needs for a result: its layout if it is one `PerReplica`, None for one array."""
        if len(self.leaves) == 1 and self.dynamic:
            whole = self.treedef.unflatten([0])
            if isinstance(whole, PerReplica) and whole.is_global:
                return whole.layout
            if type(whole) is int and mesh is not None and self.plain:
                return None
        return self.rebuild

    def _convert(self, mesh: ReplicaMesh, arrays: list[Any]) -> None:
        """Return plain arrays as the first replica's copy, and place components on their replicas."""
        for n in self.plain:
            arrays[n] = first_copy(arrays[n])
        for n, replica in self.apart:
            if replica in mesh.local_replica_ids:
                copies = mesh.split_replicated(arrays[n])
                arrays[n] = copies[mesh.local_replica_ids.index(replica)]
