"""Gradient accumulation: a batch in parts, one after the other, with the result of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.contexts import Rows, current, current_rows, use_rows
from replicax.errors import InputError
from replicax.values import is_array
from replicax.variables import is_variable

__all__ = ["Microbatches", "part_weight"]


def part_weight(rows: Rows) -> Any:
    """The part of a batch's examples that is in some of its rows; padding counts for nothing.

    Of a batch without examples the parts are equal: what does not depend on examples counts once.
    """
    replica = current().replica
    mask = None if replica is None else replica._whole_mask
    if mask is None or mask.shape[0] != rows.total:
        return (rows.stop - rows.start) / rows.total if rows.total else 1 / rows.num_parts
    own, all_ = jnp.sum(mask[rows.start : rows.stop]), jnp.sum(mask)
    return jnp.where(all_ == 0, 1 / rows.num_parts, own / jnp.maximum(all_, 1))


@final
class Microbatches:
    """The parts of a batch: its arrays, cut along their first axis.

    Args:
        count: how many parts; sizes differ by at most one.
        args: the arguments; arrays in them have one row for each example.
        kwargs: likewise.
    """

    def __init__(self, count: int, args: Any, kwargs: Any) -> None:
        """Look at the number of rows."""
        if current_rows() is not None:
            raise InputError(
                "value_and_grad(microbatches=...) inside another one: cut the batch only once."
            )
        # Variables stay what they are: they are no part of the batch, and may be differentiated.
        self._leaves, self._treedef = jax.tree.flatten((args, kwargs), is_leaf=is_variable)
        self._cut = [i for i, leaf in enumerate(self._leaves) if is_array(leaf) and np.ndim(leaf)]
        sizes = {self._leaves[i].shape[0] for i in self._cut}
        if len(sizes) != 1:
            raise InputError(
                "value_and_grad(microbatches=...) cuts its array arguments along their first axis, so they "
                f"must have one number of rows; they have {sorted(sizes) or 'none'}. Close over arrays "
                "that are not part of the batch."
            )
        (total,) = sizes
        stops = [total * (i + 1) // count for i in range(count)]
        starts = [0, *stops[:-1]]
        self._parts = [Rows(a, b, total, count) for a, b in zip(starts, stops, strict=True)]

    def accumulate(self, one: Callable[[Any, Any], Any]) -> Any:
        """The mean over the parts, by their numbers of examples, of what `one` gives for each.

        `one` returns `((loss, aux), gradients)`. In a compiled step each part waits for the one before.
        """
        sums: Any = None
        extras = []
        for rows in self._parts:
            leaves = list(self._leaves)
            for i in self._cut:
                leaves[i] = leaves[i][rows.start : rows.stop]
            if sums is not None:
                leaves, sums = _in_turn(leaves, sums)
            args, kwargs = self._treedef.unflatten(leaves)
            with use_rows(rows):
                (loss, aux), gradients = one(args, kwargs)
            weight = part_weight(rows)
            part = jax.tree.map(lambda value, weight=weight: _weighted(value, weight), (loss, gradients))
            sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
            extras.append(aux)
        loss, gradients = sums
        return (loss, extras), gradients


def _weighted(value: Any, weight: Any) -> Any:
    # A part without examples counts for nothing, even if its mean is not a number.
    return jnp.where(weight == 0, jnp.zeros_like(value), value * jnp.asarray(weight, value.dtype))


def _in_turn(leaves: list[Any], sums: Any) -> tuple[list[Any], Any]:
    """The same values, but the compiler can't use `leaves` before the sums are there."""
    arrays, sums = jax.lax.optimization_barrier(([x for x in leaves if is_array(x)], sums))
    rest = iter(arrays)
    return [next(rest) if is_array(leaf) else leaf for leaf in leaves], sums
