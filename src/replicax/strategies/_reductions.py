"""`strategy.reduce` and `strategy.gather`: structures of values become plain arrays."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_transforming
from replicax.collectives import Communicator, checked_axis, deliver, map_each
from replicax.errors import CollectiveError
from replicax.types import ReduceOp
from replicax.values import IndexedSlices, Leaf, Mirrored, PerReplica, is_number, without_padding
from replicax.variables import Variable, VariableCopy

__all__ = ["flatten_values", "gather", "reduce", "reduce_leaves"]


def flatten_values(structure: Any) -> tuple[list[Any], Any]:
    """The values in `structure`, of variables what the replicas hold, and its shape."""

    def is_leaf(x: Any) -> bool:
        return x is None or isinstance(x, IndexedSlices | Leaf)

    leaves, treedef = jax.tree.flatten(structure, is_leaf=is_leaf)
    held = [x.held() if isinstance(x, Variable | VariableCopy) else x for x in leaves]
    return held, treedef


def reduce_leaves(
    communicator: Communicator,
    op: ReduceOp,
    leaves: list[Any],
    options: Any = None,
    destinations: list[Any] | None = None,
) -> list[Any]:
    """Each leaf combined over the replicas; rows of `IndexedSlices` are put one after the other."""
    where = destinations or leaves
    dense = [i for i, leaf in enumerate(leaves) if not isinstance(leaf, IndexedSlices)]
    reduced = communicator.reduce(
        op, [leaves[i] for i in dense], options, [where[i] for i in dense] if destinations else None
    )
    results: list[Any] = list(leaves)
    for i, value in zip(dense, reduced, strict=True):
        results[i] = value
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, IndexedSlices):
            rows = _reduce_rows(communicator, op, leaf)
            results[i] = _delivered(rows, where[i]) if destinations else rows
    return results


def _delivered(rows: IndexedSlices, where: Any) -> IndexedSlices:
    def moved(part: Any) -> Any:
        return deliver(part, where) if isinstance(part, Mirrored) else part

    return IndexedSlices(moved(rows.values), moved(rows.indices), rows.dense_shape)


def _reduce_rows(communicator: Communicator, op: ReduceOp, rows: IndexedSlices) -> IndexedSlices:
    # Rows, or only their numbers, that are the same for all replicas come from each of them.
    parts = [communicator.mirrored(part) for part in (rows.values, rows.indices)]
    values, indices = (communicator.gather(part, 0)[0] for part in parts)
    if op is ReduceOp.MEAN:
        scale = 1 / communicator.num_replicas
        values = (
            Mirrored.from_whole(values.whole * scale, values.mesh)
            if isinstance(values, Mirrored)
            else values * scale
        )
    return IndexedSlices(values, indices, rows.dense_shape)


def reduce(communicator: Communicator, op: ReduceOp, structure: Any, axis: Any) -> Any:
    """Combine over the replicas and, with `axis`, inside each replica's value too."""
    leaves, treedef = flatten_values(structure)
    if axis is None:
        reduced = reduce_leaves(communicator, op, leaves)
    else:
        reduced = [_reduce_axis(communicator, op, leaf, axis) for leaf in leaves]
    return jax.tree.map(_plain, treedef.unflatten(reduced), is_leaf=_is_mirrored)


def _is_mirrored(value: Any) -> bool:
    return isinstance(value, Mirrored)


def _plain(value: Any) -> Any:
    return value.to_plain() if isinstance(value, Mirrored) else value


@final
@dataclasses.dataclass(frozen=True)
class _SumAxes:
    """A replica's sum over some of its axes; `wide` for a mean."""

    axes: tuple[int, ...]
    wide: bool = False

    def __call__(self, axis: str, *values: Any) -> list[Any]:
        return [self._sum(jnp.asarray(value)) for value in values]

    def _sum(self, value: Any) -> Any:
        return jnp.sum(_widened(value) if self.wide else value, axis=self.axes)


def _widened(value: Any) -> Any:
    """What a mean is computed from, as `jnp.mean` does it: whole numbers and small floats as float32.

    The sum of many may not fit into their own dtype, nor may their number.
    """
    small = value.dtype in (jnp.float16, jnp.bfloat16)
    return value.astype(jnp.float32) if small or jnp.issubdtype(value.dtype, jnp.integer) else value


def _reduce_axis(communicator: Communicator, op: ReduceOp, leaf: Any, axis: Any) -> Any:
    components = leaf.components if isinstance(leaf, PerReplica) and leaf.uniform is None else [leaf]
    for component in components:
        _check_reducible(component)
    sample = _sample(leaf)
    axes, dtype = _checked_axes(axis, sample), jnp.result_type(sample)
    mean = op is ReduceOp.MEAN
    if not isinstance(leaf, PerReplica):
        # Every replica contributes the same.
        value = jnp.asarray(_plain(leaf))
        (total,) = _SumAxes(axes, wide=mean)("", value)
        count = _count(value.shape, axes)
        return _divided(total, count, dtype) if mean else total * communicator.num_replicas
    if leaf.example_mask is not None and 0 in axes:
        return _reduce_examples(communicator, op, leaf, axes)
    sums = map_each(_SumAxes(axes, wide=mean), leaf, communicator.mesh)
    if not mean:
        return communicator.reduce(ReduceOp.SUM, [sums])[0]
    uniform = leaf.uniform
    if uniform is not None:
        count: Any = _count(uniform.shape, axes) * communicator.num_replicas
        total = communicator.reduce(ReduceOp.SUM, [sums])[0]
    else:
        sizes = [jnp.int32(_count(np.shape(c), axes)) for c in leaf.components]
        counts = PerReplica(sizes, mesh=communicator.mesh)
        total, count = communicator.reduce(ReduceOp.SUM, [sums, counts])
    return _divided(jnp.asarray(_plain(total)), _plain(count), dtype)


def _reduce_examples(communicator: Communicator, op: ReduceOp, leaf: PerReplica, axes: Any) -> Any:
    """`_reduce_axis` for a padded value: its padding counts for nothing."""
    mesh, mask, uniform = communicator.mesh, leaf.example_mask, leaf.uniform
    assert mask is not None and uniform is not None
    sums = map_each(_SumAxes(axes, wide=op is ReduceOp.MEAN), without_padding(leaf, mesh), mesh)
    counts = map_each(_SumAxes((0,)), mask, mesh)
    total, rows = communicator.reduce(ReduceOp.SUM, [sums, counts])
    if op is ReduceOp.SUM:
        return total
    others = _count(uniform.shape, tuple(a for a in axes if a != 0))
    return _divided(jnp.asarray(_plain(total)), _plain(rows) * others, uniform.dtype)


def _sample(leaf: Any) -> Any:
    """A component whose axes are those of all: of unlike components, the first."""
    if isinstance(leaf, PerReplica):
        uniform = leaf.uniform
        return leaf.components[0] if uniform is None else uniform
    return _plain(leaf)


def _check_reducible(component: Any) -> None:
    value = _plain(component)
    if isinstance(value, PerReplica):
        return
    if isinstance(value, IndexedSlices):
        raise CollectiveError(
            "IndexedSlices can be reduced only with axis=None, which joins their rows; use "
            "`.to_dense()` to reduce over an axis."
        )
    if not is_number(value):
        raise CollectiveError(f"Only arrays and numbers can be reduced, got {component!r}.")


def _checked_axes(axis: Any, sample: Any) -> tuple[int, ...]:
    if isinstance(axis, list):
        raise TypeError(f"reduce(axis={axis}): pass an int or a tuple of ints, not a list.")
    given = axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(checked_axis(a, sample, "reduce") for a in given)
    if len(set(axes)) < len(axes):
        raise CollectiveError(f"reduce(axis={axis}) names an axis twice.")
    return axes


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return int(np.prod([shape[a] for a in axes]))


def _divided(total: Any, count: Any, dtype: Any) -> Any:
    """The mean of values of `dtype`: of that dtype too, or float32 for whole numbers."""
    if jnp.issubdtype(total.dtype, jnp.inexact):
        return (total / jnp.asarray(count, total.dtype)).astype(
            dtype if jnp.issubdtype(dtype, jnp.inexact) else total.dtype
        )
    return total.astype(jnp.float32) / count


def gather(communicator: Communicator, structure: Any, axis: int) -> Any:
    """Join the replicas' values along `axis`, leaf by leaf."""
    leaves, treedef = flatten_values(structure)
    for leaf in leaves:
        if isinstance(leaf, IndexedSlices):
            raise NotImplementedError("gather does not take IndexedSlices; use reduce(axis=None).")
        if not isinstance(leaf, PerReplica | Mirrored) and not is_number(leaf):
            raise CollectiveError(f"Only arrays can be gathered, got {leaf!r}.")
    gathered = [_gather_leaf(communicator, leaf, axis) for leaf in leaves]
    return jax.tree.map(_plain, treedef.unflatten(gathered), is_leaf=_is_mirrored)


def _gather_leaf(communicator: Communicator, leaf: Any, axis: int) -> Any:
    """One value joined along `axis`; padding is left out."""
    joined = communicator.gather(leaf, axis)[0]
    mask = leaf.example_mask if isinstance(leaf, PerReplica) else None
    if mask is None or checked_axis(axis, leaf.uniform) != 0:
        return joined
    if is_transforming():
        raise CollectiveError(
            "gather(axis=0) of a padded batch inside a compiled step: how many examples there are is known "
            "only when it runs. Return the per-replica value from the step and gather it outside."
        )
    examples = communicator.gather(mask, 0)[0]
    return jnp.asarray(_plain(joined))[jnp.asarray(_plain(examples))]
