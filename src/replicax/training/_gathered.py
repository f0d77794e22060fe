"""Gradients with respect to sharded variables, in compiled replicas.

No variable should exist as a whole for longer than the operation that uses it. So the loss function is
traced with the whole values as inputs, and then evaluated operation by operation. One that uses a variable,
such as a matrix product, gathers the shards first. For the backward pass JAX keeps only the shards, and
the gradient of the operation gathers them again. Operations that only rearrange a variable (a transpose, a
cast) become part of the operation that uses the result.

JAX differentiates with respect to a *probe* of the variable's shape, which is never computed. Its gradient
is the replica's own gradient with respect to the whole value, as for any other variable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from replicax._jax import run_equation
from replicax.values import is_array
from replicax.variables import Frame, Shard, Variable

__all__ = ["GatheredValues"]

_Operation = Callable[[list[Any]], Sequence[Any]]

_REARRANGING = frozenset(
    ("slice", "reshape", "transpose", "squeeze", "convert_element_type", "broadcast_in_dim", "copy")
)
"""Operations on a gathered value that are cheaper to repeat than to keep the result of."""


class GatheredValues:
    """What a loss function is differentiated with respect to: values of variables, or probes of them."""

    def __init__(self, frame: Frame, variables: Sequence[Variable]) -> None:
        cells = [frame.load(v) if v.layout.is_split and frame.is_one_replica else None for v in variables]
        self._shards = [cell if isinstance(cell, Shard) else None for cell in cells]
        self.inputs: list[Any] = [
            v.read_value() if shard is None else jnp.zeros(v.shape, v.dtype)
            for v, shard in zip(variables, self._shards, strict=True)
        ]
        """The arguments of the loss function."""

    def gathering(self, fn: Callable[[list[Any]], tuple[Any, Any]]) -> Callable[[list[Any]], Any]:
        """A function like `fn(values) -> (loss, aux)` whose arguments may be probes."""
        if not any(self._shards):
            return fn

        def gathering(inputs: list[Any]) -> Any:
            others: list[Any] = []

            def arrays_only(values: list[Any]) -> Any:
                loss, aux = fn(values)
                leaves, treedef = jax.tree.flatten(aux)
                others[:] = [treedef, [None if is_array(leaf) else leaf for leaf in leaves]]
                return loss, [leaf for leaf in leaves if is_array(leaf)]

            program = jax.make_jaxpr(arrays_only)(inputs)
            given = [
                x if shard is None else _Whole.gathered(shard, x)
                for shard, x in zip(self._shards, inputs, strict=True)
            ]
            evaluation = _Evaluation()
            results = evaluation.results(program.jaxpr, program.consts, given)
            loss, *arrays = map(evaluation.computed, results)
            remaining = iter(arrays)
            treedef, leaves = others
            return loss, treedef.unflatten([next(remaining) if x is None else x for x in leaves])

        return gathering


class _Source(NamedTuple):
    """A sharded variable: its shard in this replica, and the probe."""

    shard: Shard
    probe: Any


class _Whole(NamedTuple):
    """A value that is computed from gathered variables alone, when it is used."""

    sources: tuple[_Source, ...]
    compute: Callable[[Sequence[Any]], Any]
    """Computes it from the gathered values of `sources`."""

    @classmethod
    def gathered(cls, shard: Shard, probe: Any) -> _Whole:
        """The value of one variable."""
        return cls((_Source(shard, probe),), lambda values: values[0])


class _Evaluation:
    """Evaluates a program, some of whose arguments are gathered where they are used."""

    def __init__(self) -> None:
        self._ready: list[Any] = []

    def results(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The results of a program; they may be `_Whole`, as the arguments may."""
        variables = (*jaxpr.constvars, *jaxpr.invars)
        values: dict[Any, Any] = dict(zip(variables, (*consts, *args), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            run = functools.partial(run_equation, jaxpr, equation)
            results = self._apply(equation, run, list(map(read, equation.invars)))
            values.update(zip(equation.outvars, results, strict=True))
        return list(map(read, jaxpr.outvars))

    def _apply(self, equation: Any, run: _Operation, inputs: list[Any]) -> Sequence[Any]:
        used = [x for x in inputs if isinstance(x, _Whole)]
        if not used:
            return run(inputs)
        name = equation.primitive.name
        if name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            return self.results(inner.jaxpr, inner.consts, inputs)
        if name in _REARRANGING and len(inputs) == 1:
            (whole,) = used
            return [whole._replace(compute=lambda values: run([whole.compute(values)])[0])]
        return self._use(run, inputs)

    def computed(self, value: Any) -> Any:
        """`value`, gathered if it is `_Whole`."""
        return self._use(lambda inputs: inputs, [value])[0] if isinstance(value, _Whole) else value

    def _use(self, operation: _Operation, inputs: list[Any]) -> Sequence[Any]:
        """The results of an operation with `inputs`, of which some are `_Whole`."""
        sources = [source for x in inputs if isinstance(x, _Whole) for source in x.sources]
        others = [None if isinstance(x, _Whole) else x for x in inputs]

        def compute(values: list[Any], others: list[Any]) -> list[Any]:
            remaining = iter(values)
            return list(
                operation(
                    [
                        x.compute([next(remaining) for _ in x.sources]) if isinstance(x, _Whole) else other
                        for x, other in zip(inputs, others, strict=True)
                    ]
                )
            )

        layouts = tuple(source.shard.layout for source in sources)
        shards, probes = [s.shard.array for s in sources], [s.probe for s in sources]
        # XLA may gather one operation ahead of the one that it computes, but not everything at once.
        when = [layout.after(x, self._ready) for layout, x in zip(layouts, shards, strict=True)]
        self._ready = jax.lax.stop_gradient([x for x in others if is_array(x)]) or self._ready
        return _using_gathered(compute, layouts, when, shards, probes, others)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _using_gathered(compute: Any, layouts: Any, when: Any, shards: Any, probes: Any, others: Any) -> Any:
    return compute([layout.gathered(x) for layout, x in zip(layouts, when, strict=True)], others)


def _forward(compute: Any, layouts: Any, when: Any, shards: Any, probes: Any, others: Any) -> Any:
    return _using_gathered(compute, layouts, when, shards, probes, others), (shards, others)


def _backward(compute: Any, layouts: Any, kept: Any, gradients: Any) -> Any:
    shards, others = kept
    when = [layout.after(x, gradients) for layout, x in zip(layouts, shards, strict=True)]
    wholes = [layout.gathered(x) for layout, x in zip(layouts, when, strict=True)]
    _, transposed = jax.vjp(compute, wholes, others)
    of_wholes, of_others = transposed(gradients)
    nothing = [None] * len(shards)
    return nothing, nothing, of_wholes, of_others


_using_gathered.defvjp(_forward, _backward)
