"""Preparing gradients for an update: reduce them over the replicas in a wide enough dtype, and densify."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import jax.numpy as jnp

from replicax.collectives import CommunicationOptions, map_each, reduce_leaves, sum_in_shards
from replicax.contexts import StrategyProtocol, current
from replicax.topology import ReplicaMesh
from replicax.types import ReduceOp
from replicax.values import IndexedSlices, Mirrored, PerReplica
from replicax.variables import Divided, Variable

__all__ = ["GradientReduction", "as_rows", "dense", "is_distributed"]


@final
@dataclasses.dataclass(frozen=True)
class GradientReduction:
    """How an optimizer combines the gradients of its replicas.

    Args:
        op: SUM or MEAN.
        dtype: the dtype to reduce in; by default float32 for smaller floats, else the gradient's own.
        options: the options of the collective.
    """

    op: ReduceOp
    dtype: Any
    options: CommunicationOptions | None

    def cast(self, gradient: Any) -> Any:
        """One replica's gradient in the dtype to reduce in."""
        if isinstance(gradient, IndexedSlices):
            return IndexedSlices(self.cast(gradient.values), gradient.indices, gradient.dense_shape)
        gradient = jnp.asarray(gradient)
        small = gradient.dtype in (jnp.bfloat16, jnp.float16)
        return gradient.astype(self.dtype or (jnp.float32 if small else gradient.dtype))

    def reduce_all(self, strategy: StrategyProtocol, gradients: list[Any]) -> list[Any]:
        """Reduce every gradient; one that is the same on all replicas counts once per replica."""
        return reduce_leaves(strategy.communicator, self.op, gradients, self.options)

    def reduce_to_shards(
        self,
        strategy: StrategyProtocol,
        gradients: list[Any],
        variables: Sequence[Variable],
        layouts: Sequence[Divided | None],
    ) -> list[Any]:
        """Reduce every gradient of compiled replicas; with a layout, to this replica's shard."""
        results: list[Any] = [None] * len(gradients)
        whole = [i for i, layout in enumerate(layouts) if layout is None]
        reduced = self.reduce_all(strategy, [gradients[i] for i in whole])
        for i, value in zip(whole, reduced, strict=True):
            results[i] = dense(value, variables[i])
        for i, layout in enumerate(layouts):
            if layout is not None:
                own = gradients[i].select(0) if isinstance(gradients[i], PerReplica) else gradients[i]
                early = sum_in_shards(own)
                total = layout.summed(own) if early is None else early
                results[i] = total / strategy.num_replicas_in_sync if self.op is ReduceOp.MEAN else total
        return results

    def reduce_distributed(self, strategy: StrategyProtocol, gradients: list[Any]) -> list[Any]:
        """Reduce the per-replica gradients and leave the others alone."""
        chosen = [i for i, gradient in enumerate(gradients) if is_distributed(gradient)]
        values = [self._cast_parts(gradients[i], strategy.mesh) for i in chosen]
        results = list(gradients)
        for i, value in zip(chosen, self.reduce_all(strategy, values), strict=True):
            results[i] = value
        return results

    def _cast_parts(self, gradient: Any, mesh: ReplicaMesh) -> Any:
        if isinstance(gradient, IndexedSlices):
            values = self._cast_parts(gradient.values, mesh)
            return IndexedSlices(values, gradient.indices, gradient.dense_shape)

        def cast_each(axis: str, *parts: Any) -> list[Any]:
            return [self.cast(part) for part in parts]

        return map_each(cast_each, gradient, mesh)


def is_distributed(gradient: Any) -> bool:
    """Whether a gradient is one value that holds the gradients of all replicas."""
    return isinstance(gradient.values if isinstance(gradient, IndexedSlices) else gradient, PerReplica)


def as_rows(gradient: Any, variable: Variable) -> Any:
    """The rows that a gradient was made from, if a compiled step looked up only these rows."""
    table = current().frame.table(variable)
    return gradient if table is None else table.as_rows(gradient)


def dense(gradient: Any, variable: Variable) -> Any:
    """A reduced gradient as an array on the devices of the variable's state."""
    if isinstance(gradient, IndexedSlices):
        values, indices = dense(gradient.values, variable), dense(gradient.indices, variable)
        return jnp.zeros(variable.shape, values.dtype).at[indices].add(values)
    if not isinstance(gradient, Mirrored):
        return jnp.asarray(gradient)
    return gradient.whole if variable.layout.on_mesh else gradient.to_plain()
