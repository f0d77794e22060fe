"""Gradient accumulation: process a batch in parts, with the same result as for the whole batch.

The loss of a batch is the mean of its parts' losses, each weighted by its share of the examples. A loss
that divides by something other than its number of rows needs the total over all parts, which no part knows.
For `compute_average_loss` the total follows from the numbers of rows. For `compute_weighted_loss` the loss
function is called once more for each part, before the gradients are computed, to add up the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import current_program, current_trace
from replicax._recording import is_transforming
from replicax.contexts import Rows, StrategyProtocol, current, enter
from replicax.errors import CollectiveError, InputError, TracingError
from replicax.training._padding import current_examples
from replicax.values import PerReplica, is_array
from replicax.variables import is_variable

__all__ = ["LossWeights", "Microbatches", "is_padding", "part_weight", "sum_over_replicas"]


def sum_over_replicas(values: list[Any]) -> list[Any]:
    """Sum scalars over all replicas; gradients do not flow through the sums."""
    replica = current().replica
    values = [jax.lax.stop_gradient(jnp.asarray(value, jnp.float32)) for value in values]
    if replica is None or replica.num_replicas_in_sync == 1 or not values:
        return values
    return [jax.lax.stop_gradient(total) for total in replica.all_reduce("SUM", values)]


def part_weight(rows: Rows) -> Any:
    """These rows' share of the examples of the batch; padding does not count.

    If the whole batch is padding, the parts count equally, so that terms that do not depend on examples
    count once.
    """
    mask = _mask_of_batch(rows)
    if mask is None:
        return (rows.stop - rows.start) / rows.total
    own, all_ = jnp.sum(mask[rows.start : rows.stop]), jnp.sum(mask)
    return jnp.where(all_ == 0, 1 / rows.num_parts, own / jnp.maximum(all_, 1))


def is_padding(rows: Rows) -> Any:
    """Whether these rows are only padding; None if the batch is not padded."""
    mask = _mask_of_batch(rows)
    return None if mask is None else ~jnp.any(mask[rows.start : rows.stop])


def _mask_of_batch(rows: Rows) -> Any:
    """The mask of the batch that is split; None if it is not padded."""
    examples = current_examples()
    return examples.mask(rows.batches, rows).whole if rows.batches and examples is not None else None


def _batches_of(arrays: Sequence[Any]) -> tuple[int, ...]:
    """Which of the replica's padded batches these arrays were computed from."""
    examples = current_examples()
    origin = None if examples is None else examples.find(arrays, None)
    if isinstance(origin, str):
        raise InputError(
            f"value_and_grad(microbatches=...) can't split arrays with {arrays[0].shape[0]} rows: {origin}."
        )
    return origin or ()


class LossWeightsNeeded(BaseException):
    """`compute_weighted_loss` was called in a part before the weights of all parts are known.

    Not an `Exception`, so that user code does not catch it.
    """


@final
@dataclasses.dataclass
class LossWeights:
    """What the calls of `compute_weighted_loss` in one part need to know about the other parts.

    `totals` are the sums of weights over all parts and replicas, one per call in the loss function. While
    they are being computed, `collected` gathers the weights of this part.
    """

    totals: list[Any] | None = None
    collected: list[Any] | None = None
    program: Any = None
    num_calls: int = 0

    def restart(self) -> None:
        """Count the calls from zero: the loss function is about to be called, in the current program."""
        self.num_calls = 0
        self.program = current_program()
        if self.collected is not None:
            self.collected.clear()

    def total(self, own: Any) -> Any:
        """The sum of weights over all parts and replicas for this call; `own` is the sum of this part."""
        if current_program() is not self.program:
            raise TracingError(
                "compute_weighted_loss was called inside a function that JAX traces separately (jit, "
                "checkpoint, scan, ...), with value_and_grad(microbatches=...). Return the losses from "
                "that function, and call compute_weighted_loss outside of it."
            )
        self.num_calls += 1
        if self.collected is not None:
            self.collected.append(own)
            return own
        if self.totals is None:
            raise LossWeightsNeeded
        if self.num_calls > len(self.totals):
            raise _unequal_calls()
        return self.totals[self.num_calls - 1]


def _unequal_calls() -> CollectiveError:
    return CollectiveError(
        "value_and_grad(microbatches=...): the loss function must make the same calls to "
        "compute_weighted_loss for every part of the batch."
    )


@final
class Microbatches:
    """The parts of a batch: its arrays, split along their first axis.

    No part is empty, so there are fewer parts than requested if a replica has fewer rows.

    Args:
        count: the largest number of parts; their sizes differ by at most one.
        args: the arguments; arrays among them have one row per example.
        kwargs: the keyword arguments, treated in the same way.
    """

    def __init__(self, count: int, args: Any, kwargs: Any) -> None:
        if current().rows is not None:
            raise InputError(
                "value_and_grad(microbatches=...) was called inside another one: split the batch only once."
            )
        # Variables are not part of the batch, and may be differentiated.
        self._leaves, self._treedef = jax.tree.flatten((args, kwargs), is_leaf=is_variable)
        self._split_indices = [i for i, leaf in enumerate(self._leaves) if is_array(leaf) and np.ndim(leaf)]
        sizes = {self._leaves[i].shape[0] for i in self._split_indices}
        if len(sizes) != 1:
            raise InputError(
                "value_and_grad(microbatches=...) splits its array arguments along their first axis, so "
                f"they must have the same number of rows; they have {sorted(sizes) or 'none'}. Close over "
                "arrays that are not part of the batch."
            )
        (self._total,) = sizes
        self._batches = _batches_of([self._leaves[i] for i in self._split_indices])
        self.count = max(1, min(count, _fewest_rows(self._total)))

    def accumulate(self, one: Callable[[Any, Any], Any], probe: Callable[[Any, Any], None]) -> Any:
        """The mean of what `one` returns for each part, weighted by the number of examples.

        Args:
            one: returns `((loss, aux), gradients)`.
            probe: calls the loss function without gradients, and discards its writes.
        """
        if self.count == 1:
            (loss, aux), gradients = one(*self._treedef.unflatten(self._leaves))
            return (loss, [aux]), gradients
        try:
            return self._accumulate(one, None)
        except LossWeightsNeeded:
            return self._accumulate(one, self._total_weights(probe))

    def _accumulate(self, one: Callable[[Any, Any], Any], totals: list[Any] | None) -> Any:
        sums: Any = None
        extras = []
        for rows in self._parts():
            leaves = self._slice_leaves(rows)
            if sums is not None:
                leaves, sums = _in_turn(leaves, sums)
            args, kwargs = self._treedef.unflatten(leaves)
            weights = LossWeights(totals)
            with enter(current().with_rows(dataclasses.replace(rows, weights=weights))):
                (loss, aux), gradients = one(args, kwargs)
            if totals is not None and weights.num_calls != len(totals):
                raise _unequal_calls()
            weight = part_weight(rows)
            part = jax.tree.map(lambda value, weight=weight: _weighted(value, weight), (loss, gradients))
            sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
            extras.append(aux)
        loss, gradients = sums
        return (loss, extras), gradients

    def _total_weights(self, probe: Callable[[Any, Any], None]) -> list[Any]:
        """The sums of weights over all parts and replicas, for each call of `compute_weighted_loss`."""
        found = []
        for rows in self._parts():
            args, kwargs = self._treedef.unflatten(self._slice_leaves(rows))
            weights = LossWeights(collected=[])
            with enter(current().with_rows(dataclasses.replace(rows, weights=weights))):
                probe(args, kwargs)
            found.append(weights.collected)
        if len({len(part) for part in found}) > 1:
            raise _unequal_calls()
        return sum_over_replicas([sum(parts) for parts in zip(*found, strict=True)])

    def _parts(self) -> list[Rows]:
        stops = [self._total * (i + 1) // self.count for i in range(self.count)]
        starts = [0, *stops[:-1]]
        return [
            Rows(a, b, self._total, self.count, self._batches) for a, b in zip(starts, stops, strict=True)
        ]

    def _slice_leaves(self, rows: Rows) -> list[Any]:
        leaves = list(self._leaves)
        for i in self._split_indices:
            leaves[i] = leaves[i][rows.start : rows.stop]
        return leaves


def _fewest_rows(own: int) -> int:
    """The smallest number of rows on any replica: all replicas must make the same number of parts."""
    replica = current().replica
    if replica is None or replica.num_replicas_in_sync == 1 or replica._is_one_program:
        return own
    if current_trace() is not replica._merge_point.base_trace:
        return own  # inside a replica's own trace, where eager replicas can't wait for each other
    return replica.merge_call(_smallest, args=(own,))


def _smallest(strategy: StrategyProtocol, rows: Any) -> int:
    if not isinstance(rows, PerReplica):
        return rows
    if strategy.mesh.is_local or is_transforming():
        return min(map(int, rows.values))
    sizes = PerReplica([jnp.asarray([size], jnp.int32) for size in rows.components], mesh=strategy.mesh)
    return int(np.min(np.asarray(strategy.communicator.gather(sizes, 0)[0].to_plain())))


def _weighted(value: Any, weight: Any) -> Any:
    # A part without examples has no weight, even if its mean is NaN.
    return jnp.where(weight == 0, jnp.zeros_like(value), value * jnp.asarray(weight, value.dtype))


def _in_turn(leaves: list[Any], sums: Any) -> tuple[list[Any], Any]:
    """The same values, with a barrier: a compiled step can't use `leaves` before it has computed `sums`.

    So only one part needs memory at a time.
    """
    arrays, sums = jax.lax.optimization_barrier(([x for x in leaves if is_array(x)], sums))
    rest = iter(arrays)
    return [next(rest) if is_array(leaf) else leaf for leaf in leaves], sums
