"""Gradients with respect to sharded variables, in compiled replicas.

A gathered variable should exist only as long as the operation that uses it. So the loss function is traced
with full values as inputs, and then evaluated operation by operation; see `_gathering.py`.

JAX differentiates with respect to a *probe* with the shape of the full variable, which is never
materialized. Its gradient is the replica's own gradient with respect to the full value, as for any other
variable.

A variable that a scan iterates over has a second probe, with the shape of the shard. Its gradient is the
sum of the replicas' gradients, reduced to shards within the loop. If the optimizer gets the gradients
unchanged, it uses that sum, and XLA eliminates the replica's own stacked gradients, which would take as
much memory as the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax.collectives import offer_sum_in_shards
from replicax.training._gathering import Evaluation, Source, Whole
from replicax.values import is_array
from replicax.variables import Frame, Shard, Table, Variable

__all__ = ["GatheredValues"]


class GatheredValues:
    """What a loss function is differentiated with respect to: the values of variables, or probes.

    For a variable in which the step only looks up rows, it is those rows.
    """

    def __init__(self, frame: Frame, variables: Sequence[Variable]) -> None:
        self._shards = [
            v.layout.shard(frame.load(v)) if v.layout.is_split and frame.is_one_replica else None
            for v in variables
        ]
        self._tables = [frame.table(v) for v in variables]
        values = [
            _input(v, shard, table)
            for v, shard, table in zip(variables, self._shards, self._tables, strict=True)
        ]
        self.inputs = (values, [shard and jnp.zeros_like(shard.array) for shard in self._shards])
        """What JAX differentiates with respect to."""
        self._summed: set[int] = set()

    def gathering(self, fn: Callable[[list[Any]], tuple[Any, Any]]) -> Callable[[Any], Any]:
        """A function like `fn(values) -> (loss, aux)` whose inputs may be probes."""
        if not any(self._shards):
            return lambda inputs: fn(inputs[0])

        def gathering(inputs: tuple[list[Any], list[Any]]) -> Any:
            others: list[Any] = []

            def arrays_only(values: list[Any]) -> Any:
                loss, aux = fn(values)
                leaves, treedef = jax.tree.flatten(aux)
                others[:] = [treedef, [None if is_array(leaf) else leaf for leaf in leaves]]
                return loss, [leaf for leaf in leaves if is_array(leaf)]

            program = jax.make_jaxpr(arrays_only)(inputs[0])
            evaluation = Evaluation()
            results = evaluation.results(program.jaxpr, program.consts, self._given(*inputs))
            loss, *arrays = map(evaluation.computed, results)
            self._summed = evaluation.only_in_loops
            remaining = iter(arrays)
            treedef, leaves = others
            return loss, treedef.unflatten([next(remaining) if x is None else x for x in leaves])

        return gathering

    def _given(self, probes: list[Any], sum_probes: list[Any]) -> list[Any]:
        """The arguments of the loss function."""
        return [
            probe if shard is None else Whole.gathered(Source(i, shard, probe, sum_probe))
            for i, (shard, probe, sum_probe) in enumerate(
                zip(self._shards, probes, sum_probes, strict=True)
            )
        ]

    def gradients(self, gradients: tuple[list[Any], list[Any]]) -> list[Any]:
        """The replica's own gradients, from the gradients with respect to `inputs`."""
        own, sums = gradients
        for i in self._summed:
            offer_sum_in_shards(own[i], sums[i])
        both = zip(own, self._tables, strict=True)
        return [gradient if table is None else table.whole_gradient(gradient) for gradient, table in both]


def _input(variable: Variable, shard: Shard | None, table: Table | None) -> Any:
    """What JAX differentiates with respect to, in place of a variable."""
    if table is not None:
        return table.rows
    return variable.read_value() if shard is None else jnp.zeros(variable.shape, variable.dtype)
