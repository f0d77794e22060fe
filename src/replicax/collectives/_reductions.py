"""Reducing and gathering many values at once: sparse rows, axes within each replica's value, padding.

`Communicator` combines dense values over the replicas. The functions here take the leaves of a structure,
as `strategy.reduce` and `strategy.gather` get them, and call it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._messages import brief
from replicax._recording import is_transforming
from replicax.collectives._communicator import Communicator, checked_axis
from replicax.collectives._cross_device_ops import deliver
from replicax.collectives._programs import map_each
from replicax.errors import CollectiveError
from replicax.types import ReduceOp
from replicax.values import IndexedSlices, Mirrored, PerReplica, is_number, without_padding

__all__ = ["gather_leaves", "reduce_leaves", "reduce_leaves_over"]


def reduce_leaves(
    communicator: Communicator,
    op: ReduceOp,
    leaves: list[Any],
    options: Any = None,
    destinations: list[Any] | None = None,
) -> list[Any]:
    """Combine each leaf over the replicas; the rows of `IndexedSlices` are concatenated."""
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
    # Each replica contributes its rows, even if the rows or their indices are the same for all.
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


def reduce_leaves_over(communicator: Communicator, op: ReduceOp, leaves: list[Any], axis: Any) -> list[Any]:
    """Combine each leaf over the replicas and, unless `axis` is None, over axes of the replicas' values.

    The results are plain arrays.
    """
    if axis is None:
        return _as_plain(reduce_leaves(communicator, op, leaves))
    return _as_plain([_reduce_axis(communicator, op, leaf, axis) for leaf in leaves])


def _as_plain(results: list[Any]) -> list[Any]:
    return jax.tree.map(_plain, results, is_leaf=_is_mirrored)


def _is_mirrored(value: Any) -> bool:
    return isinstance(value, Mirrored)


def _plain(value: Any) -> Any:
    return value.to_plain() if isinstance(value, Mirrored) else value


@final
@dataclasses.dataclass(frozen=True)
class _SumAxes:
    """The sum of a replica's value over some axes; `wide` uses the dtype of a mean."""

    axes: tuple[int, ...]
    wide: bool = False

    def __call__(self, axis: str, *values: Any) -> list[Any]:
        return [self._sum(jnp.asarray(value)) for value in values]

    def _sum(self, value: Any) -> Any:
        return jnp.sum(_widened(value) if self.wide else value, axis=self.axes)


def _widened(value: Any) -> Any:
    """Convert integers and small floats to float32 before a mean, as `jnp.mean` does.

    Their own dtype may be too small for the sum, or for the number of elements.
    """
    small = value.dtype in (jnp.float16, jnp.bfloat16)
    return value.astype(jnp.float32) if small or jnp.issubdtype(value.dtype, jnp.integer) else value


def _reduce_axis(communicator: Communicator, op: ReduceOp, leaf: Any, axis: Any) -> Any:
    components = leaf.components if isinstance(leaf, PerReplica) and leaf.uniform is None else [leaf]
    for component in components:
        _check_reducible(component)
    leaf = communicator.contribution(leaf)
    sample = _sample(leaf)
    axes, dtype = _checked_axes(axis, sample), jnp.result_type(sample)
    mean = op is ReduceOp.MEAN
    if not isinstance(leaf, PerReplica):
        # Every replica contributes the same value.
        value = jnp.asarray(_plain(leaf))
        (total,) = _SumAxes(axes, wide=mean)("", value)
        count = _count(value.shape, axes)
        return _divided(total, count, dtype) if mean else communicator.reduce(op, [total])[0]
    if 0 in axes and _is_padded(leaf, f"strategy.reduce(axis={axis})"):
        return _reduce_examples(communicator, op, leaf, axes)
    sums = map_each(_SumAxes(axes, wide=mean), leaf, communicator.mesh)
    if not mean:
        return communicator.reduce(ReduceOp.SUM, [sums])[0]
    uniform = leaf.uniform
    if uniform is not None and not communicator.is_between_processes(leaf):
        count: Any = _count(uniform.shape, axes) * communicator.num_replicas
        total = communicator.reduce(ReduceOp.SUM, [sums])[0]
    else:
        sizes = [jnp.int32(_count(np.shape(c), axes)) for c in leaf.components]
        counts = PerReplica(sizes, mesh=communicator.mesh)
        total, count = communicator.reduce(ReduceOp.SUM, [sums, counts])
    return _divided(jnp.asarray(_plain(total)), _plain(count), dtype)


def _reduce_examples(communicator: Communicator, op: ReduceOp, leaf: PerReplica, axes: Any) -> Any:
    """`_reduce_axis` for a padded value: ignores the padding."""
    mesh, mask, uniform = communicator.mesh, leaf.mask, leaf.uniform
    assert mask is not None and uniform is not None
    sums = map_each(_SumAxes(axes, wide=op is ReduceOp.MEAN), without_padding(leaf, mesh), mesh)
    if op is ReduceOp.SUM:
        return communicator.reduce(ReduceOp.SUM, [sums])[0]
    counts = map_each(_SumAxes((0,)), mask, mesh)
    total, rows = communicator.reduce(ReduceOp.SUM, [sums, counts])
    others = _count(uniform.shape, tuple(a for a in axes if a != 0))
    return _divided(jnp.asarray(_plain(total)), _plain(rows) * others, uniform.dtype)


def _is_padded(leaf: PerReplica, what: str) -> bool:
    """Whether some rows of `leaf` may be padding; raises if that is not known."""
    if leaf.doubt:
        raise CollectiveError(
            f"{what} of a value computed from a padded batch: {leaf.doubt}. Or choose the rows yourself: "
            "pass `example_mask=batch.example_mask`, or `example_mask=None` if all rows are examples."
        )
    return leaf.mask is not None


def _sample(leaf: Any) -> Any:
    """A component to check axes with; the first one if shapes differ."""
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
            "IndexedSlices can be reduced only with axis=None, which concatenates their rows. Call "
            "`.to_dense()` first to reduce over an axis."
        )
    if not is_number(value):
        raise CollectiveError(
            f"Only arrays and numbers can be reduced across replicas, got {brief(component)}."
        )


def _checked_axes(axis: Any, sample: Any) -> tuple[int, ...]:
    if isinstance(axis, list):
        raise TypeError(f"reduce(axis={axis}) got a list. Pass an int or a tuple of ints.")
    given = axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(checked_axis(a, sample, "reduce") for a in given)
    if len(set(axes)) < len(axes):
        raise CollectiveError(f"reduce(axis={axis}) names an axis twice. Name each axis once.")
    return axes


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return int(np.prod([shape[a] for a in axes]))


def _divided(total: Any, count: Any, dtype: Any) -> Any:
    """The mean of values of `dtype`, in that dtype, or in float32 for integers."""
    if jnp.issubdtype(total.dtype, jnp.inexact):
        return (total / jnp.asarray(count, total.dtype)).astype(
            dtype if jnp.issubdtype(dtype, jnp.inexact) else total.dtype
        )
    return total.astype(jnp.float32) / count


def gather_leaves(communicator: Communicator, leaves: list[Any], axis: int) -> list[Any]:
    """Concatenate the replicas' values of each leaf along `axis` into plain arrays."""
    for leaf in leaves:
        if isinstance(leaf, IndexedSlices):
            raise NotImplementedError(
                "gather does not support IndexedSlices. Use reduce(axis=None): it concatenates their rows."
            )
        if not isinstance(leaf, PerReplica | Mirrored) and not is_number(leaf):
            raise CollectiveError(f"Only arrays can be gathered across replicas, got {brief(leaf)}.")
    return _as_plain([_gather_leaf(communicator, leaf, axis) for leaf in leaves])


def _gather_leaf(communicator: Communicator, leaf: Any, axis: int) -> Any:
    """One value concatenated along `axis`, without padding."""
    sample = _sample(leaf)
    is_array_like = isinstance(leaf, PerReplica) and (is_number(sample) or hasattr(sample, "shape"))
    is_first = is_array_like and checked_axis(axis, sample) == 0
    is_padded = is_first and _is_padded(leaf, f"strategy.gather(axis={axis})")
    joined = communicator.gather(leaf, axis)[0]
    if not is_padded:
        return joined
    if is_transforming():
        raise CollectiveError(
            "gather(axis=0) can't gather a padded batch inside a compiled step: the number of examples is "
            "known only when the step runs. Return the per-replica value and gather it outside the step."
        )
    examples = communicator.gather(leaf.mask, 0)[0]
    return jnp.asarray(_plain(joined))[jnp.asarray(_plain(examples))]
