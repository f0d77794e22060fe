"""Evaluates a jaxpr, gathering sharded arguments where they are used.

An operation that uses a variable, such as a matrix product, gathers the shards first. For the backward pass
JAX saves only the shards, and the operation's gradient gathers them again, unless the layout asks to keep
the full value. Operations that only rearrange a variable (a transpose, a cast) become part of the operation
that uses the result. A scan over the first axis of a variable, such as a stack of layers, gathers one slice
per iteration.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from replicax._jax import at_source_of, is_literal, num_consts_and_carry, run_equation
from replicax.values import is_array
from replicax.variables import Shard, Sharded

__all__ = ["Evaluation", "Source", "Whole"]

_Operation = Callable[[list[Any]], Sequence[Any]]

_ELEMENTWISE = frozenset(("convert_element_type", "copy"))
_REARRANGING = _ELEMENTWISE | {"slice", "reshape", "transpose", "squeeze", "broadcast_in_dim"}
"""Operations on a gathered value that are cheaper to recompute than to store."""


class Source(NamedTuple):
    """A sharded variable: its number, its shard in this replica, and the probes that JAX differentiates."""

    number: int
    shard: Shard
    probe: Any
    """Its gradient is the replica's own, with respect to the full value."""
    sum_probe: Any
    """Its gradient is this replica's shard of the sum of all gradients; computed only in loops."""


class Whole(NamedTuple):
    """A value computed only from gathered variables, at the point where it is used."""

    sources: tuple[Source, ...]
    compute: Callable[[Sequence[Any]], Any]
    """Computes it from the gathered values of `sources`."""
    elementwise: bool
    """Whether `compute` is elementwise, so that it can be applied to slices."""

    @classmethod
    def gathered(cls, source: Source) -> Whole:
        """The value of one variable."""
        return cls((source,), lambda values: values[0], elementwise=True)

    def then(self, run: _Operation, *, elementwise: bool) -> Whole:
        """The result of an operation that rearranges this value."""
        return Whole(
            self.sources,
            lambda values: run([self.compute(values)])[0],
            elementwise=self.elementwise and elementwise,
        )

    @property
    def has_slices(self) -> bool:
        """Whether one index of the first axis can be gathered without the others."""
        (source, *more) = self.sources
        return self.elementwise and not more and source.shard.layout.has_slices


class Evaluation:
    """Evaluates a jaxpr with arguments that may be `Whole`.

    Args:
        ready: arrays that must be computed before anything is gathered.
        in_loop: whether the jaxpr is the body of a loop.
    """

    def __init__(self, ready: Sequence[Any] = (), *, in_loop: bool = False) -> None:
        self._ready, self._in_loop = list(ready), in_loop
        self._uses: collections.Counter[int] = collections.Counter()
        self._loops: set[int] = set()

    @property
    def only_in_loops(self) -> set[int]:
        """The numbers of the variables that are used only in loops, slice by slice."""
        return {number for number in self._loops if not self._uses[number]}

    def results(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr; arguments and results may be `Whole`."""
        variables = (*jaxpr.constvars, *jaxpr.invars)
        values: dict[Any, Any] = dict(zip(variables, (*consts, *args), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if is_literal(atom) else values[atom]

        for equation in jaxpr.eqns:
            run = functools.partial(run_equation, jaxpr, equation)
            with at_source_of(equation):  # attribute the gather to the line of the loss function
                results = self._apply(equation, run, list(map(read, equation.invars)))
            values.update(zip(equation.outvars, results, strict=True))
        return list(map(read, jaxpr.outvars))

    def _apply(self, equation: Any, run: _Operation, inputs: list[Any]) -> Sequence[Any]:
        used = [x for x in inputs if isinstance(x, Whole)]
        if not used:
            return run(inputs)
        name = equation.primitive.name
        if name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            return self.results(inner.jaxpr, inner.consts, inputs)
        if name in _REARRANGING and len(inputs) == 1:
            return [used[0].then(run, elementwise=name in _ELEMENTWISE)]
        if name == "scan":
            return self._scan(equation.params, run, inputs)
        return self._use(run, inputs)

    def computed(self, value: Any) -> Any:
        """`value`, gathered if it is `Whole`."""
        return self._use(lambda inputs: inputs, [value])[0] if isinstance(value, Whole) else value

    def _use(self, operation: _Operation, inputs: list[Any]) -> Sequence[Any]:
        """Evaluate an operation, some of whose `inputs` are `Whole`."""
        sources = [source for x in inputs if isinstance(x, Whole) for source in x.sources]
        others = [None if isinstance(x, Whole) else x for x in inputs]

        def compute(values: list[Any], others: list[Any]) -> list[Any]:
            remaining = iter(values)
            return list(
                operation(
                    [
                        x.compute([next(remaining) for _ in x.sources]) if isinstance(x, Whole) else other
                        for x, other in zip(inputs, others, strict=True)
                    ]
                )
            )

        self._uses.update(source.number for source in sources)
        ready = self._ready
        self._ready = jax.lax.stop_gradient([x for x in others if is_array(x)]) or ready
        step = _Step(compute, tuple(source.shard.layout for source in sources), self._in_loop)
        shards, probes = [s.shard.array for s in sources], [s.probe for s in sources]
        sum_probes = [s.sum_probe if self._in_loop else None for s in sources]
        return _using_gathered(step, ready, shards, probes, sum_probes, others)

    def _scan(self, params: dict[str, Any], run: _Operation, inputs: list[Any]) -> Sequence[Any]:
        """Evaluate a scan; if it iterates over a variable, gather one slice per iteration."""
        num_consts, num_carry = num_consts_and_carry(params)
        first = num_consts + num_carry
        stacks = {i: x for i, x in enumerate(inputs[first:]) if isinstance(x, Whole) and x.has_slices}
        if not stacks:
            return self._use(run, inputs)
        self._loops.update(stack.sources[0].number for stack in stacks.values())
        inputs = [x if i - first in stacks else self.computed(x) for i, x in enumerate(inputs)]
        consts, carry, xs = inputs[:num_consts], inputs[num_consts:first], inputs[first:]

        def body(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            evaluation = Evaluation(jax.lax.stop_gradient(carry), in_loop=True)
            given = [_slice_of(stacks[i], x) if i in stacks else x for i, x in enumerate(slices)]
            jaxpr = params["jaxpr"]
            results = evaluation.results(jaxpr.jaxpr, jaxpr.consts, [*consts, *carry, *given])
            results = list(map(evaluation.computed, results))
            return results[:num_carry], results[num_carry:]

        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        parts = [_parts_of(x) if i in stacks else x for i, x in enumerate(xs)]
        carry, ys = jax.lax.scan(body, carry, parts, **options)
        return [*carry, *ys]


def _parts_of(stack: Whole) -> tuple[Any, Any, Any]:
    """What a scan iterates over in place of a variable."""
    (source,) = stack.sources
    return source.shard.array, source.probe, source.sum_probe


def _slice_of(stack: Whole, parts: tuple[Any, Any, Any]) -> Whole:
    """One index of a variable, from slices of its parts."""
    (source,) = stack.sources
    array, probe, sum_probe = parts
    slice_ = Source(source.number, Shard(array, source.shard.layout.of_slices), probe, sum_probe)
    return stack._replace(sources=(slice_,))


class _Step(NamedTuple):
    """An operation, apart from its arguments."""

    compute: Callable[[list[Any], list[Any]], list[Any]]
    """Computes the results from the gathered values and the other arguments."""
    layouts: tuple[Sharded, ...]
    in_loop: bool

    @property
    def gathers_again(self) -> bool:
        """Whether the backward pass gathers the values again."""
        return self.layouts[0].gather_again

    def gathered(self, shards: list[Any], ready: Any) -> list[Any]:
        """The full values, which XLA must not gather before it has computed `ready`.

        XLA may prefetch for one operation, but not gather everything at once, nor keep values gathered in
        the forward pass.
        """
        ready = [x for x in jax.tree.leaves(ready) if x.size and x.dtype != jax.dtypes.float0]
        mesh = self.layouts[0].mesh
        in_branches = mesh.platform == "cpu" and mesh.num_logical_devices == 1
        if not self.gathers_again:
            ready = []
        if ready and not in_branches:
            shards, _ = jax.lax.optimization_barrier((shards, ready))
        pairs = zip(self.layouts, shards, strict=True)
        if not ready or not in_branches or self.in_loop:
            return [layout.gathered(x) for layout, x in pairs]
        # On CPU XLA removes barriers, hoists gathers and merges equal ones, but not those in a branch. It
        # can't know that this condition is always false.
        first = [jnp.ravel(x)[0] for x in ready]
        never = functools.reduce(jnp.logical_or, [jnp.logical_and(x != x, x == x) for x in first])
        return [jax.lax.cond(never, layout.zeros, layout.gathered, x) for layout, x in pairs]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _using_gathered(
    step: _Step, ready: Any, shards: Any, probes: Any, sum_probes: Any, others: Any
) -> list[Any]:
    return step.compute(step.gathered(shards, ready), others)


def _forward(step: _Step, ready: Any, shards: Any, probes: Any, sum_probes: Any, others: Any) -> Any:
    wholes = step.gathered(shards, ready)
    kept = (shards, None) if step.gathers_again else (None, wholes)
    return step.compute(wholes, others), (jax.tree.map(lambda _: None, ready), *kept, others)


def _backward(step: _Step, kept: Any, gradients: Any) -> Any:
    nothing_for_ready, shards, wholes, others = kept
    if step.gathers_again:
        wholes = step.gathered(shards, gradients)
    _, transposed = jax.vjp(step.compute, wholes, others)
    of_wholes, of_others = transposed(gradients)
    nothing = [None] * len(step.layouts)
    sums = nothing
    if step.in_loop:
        sums = [layout.summed(x) for layout, x in zip(step.layouts, of_wholes, strict=True)]
    return nothing_for_ready, nothing, of_wholes, sums, of_others


_using_gathered.defvjp(_forward, _backward)
