"""Transposing a linear program: from the gradients of its results to the gradients of its inputs.

JAX does the work (`backward_pass3`). This module adds two things: it runs only the part of the program
between the chosen inputs and the results, and it can return gradients of intermediate values too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, final

import jax

from replicax._jax import private

__all__ = ["Transposed"]

_backward_pass = private("interpreters.ad", "backward_pass3")
_Accumulator = private("interpreters.ad", "ValAccum")
_Zero = private("interpreters.ad", "Zero")
_Var = private("core", "Var")
_without_dead_code = private("interpreters.partial_eval", "dce_jaxpr")


@final
class Transposed:
    """The transpose of a linear program.

    Args:
        jaxpr: the program.
        given: the values of its constants, and of the inputs that it is not linear in.
        wanted: the jaxpr variables to compute gradients of: inputs or intermediate results.
    """

    def __init__(self, jaxpr: Any, given: dict[Any, Any], wanted: Sequence[Any]) -> None:
        linear = [var for var in jaxpr.invars if var not in given]
        inner = {v for v in wanted if isinstance(v, _Var)} - {*linear, *given}
        probes, equations = _with_probes(jaxpr.eqns, inner)
        self._wanted = [probes.get(v, v) if isinstance(v, _Var) else None for v in wanted]
        kept, cut = _between(equations, {*linear, *probes.values()}, {*self._wanted}, jaxpr.outvars)
        self._given, self._inputs = given, [*linear, *probes.values(), *cut]
        self._jaxpr = jaxpr.replace(constvars=[], invars=[*given, *self._inputs], eqns=kept)
        self._has_loops = any(equation.primitive.name == "scan" for equation in kept)

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        """The gradients of the wanted variables; None where the results do not depend on one."""
        sums = {var: _Accumulator(var.aval.to_ct_aval()) for var in self._inputs}
        jaxpr, cotangents = self._for(cotangents)
        _backward_pass(jaxpr, True, (), [*self._given.values(), *sums.values()], cotangents)
        gradients = [sums[var].freeze() if var in sums else None for var in self._wanted]
        return [None if isinstance(gradient, _Zero) else gradient for gradient in gradients]

    def _for(self, cotangents: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """The program, and its cotangents, without the results whose cotangents are zero.

        JAX 0.10 gives the zero cotangent of a scan's unused result the wrong shape, and then refuses it.
        """
        if not self._has_loops:
            return self._jaxpr, cotangents
        used = [not isinstance(cotangent, _Zero) for cotangent in cotangents]
        jaxpr, _ = _without_dead_code(self._jaxpr, used, instantiate=True)
        return jaxpr, [cotangent for cotangent, keep in zip(cotangents, used, strict=True) if keep]


def _with_probes(equations: Sequence[Any], chosen: set[Any]) -> tuple[dict[Any, Any], list[Any]]:
    """Add a new input to each of the `chosen` results: the gradient of the input is that of the result."""
    probes: dict[Any, Any] = {}
    changed: list[Any] = []
    for equation in equations:
        found = [var for var in equation.outvars if var in chosen]
        if not found:
            changed.append(equation)
            continue
        bare = {var: _Var(var.aval) for var in found}
        probes |= {var: _Var(var.aval) for var in found}
        changed.append(equation.replace(outvars=[bare.get(var, var) for var in equation.outvars]))
        changed += [_addition().replace(invars=[bare[v], probes[v]], outvars=[v]) for v in found]
    return probes, changed


@functools.cache
def _addition() -> Any:
    return jax.make_jaxpr(jax.lax.add)(1.0, 1.0).jaxpr.eqns[0]


def _between(
    equations: Sequence[Any], linear: set[Any], wanted: set[Any], results: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The equations that lead from `wanted` to `results`, and those that compute constants for them.

    Also returns the results of other equations that they may use.
    """
    linear, reached = {*linear}, {*wanted}
    kept: list[Any] = []
    cut: list[Any] = []
    for equation in equations:
        inputs = _variables(equation.invars)
        if inputs & linear:
            linear.update(equation.outvars)
        if inputs & reached:
            reached.update(equation.outvars)
        if inputs & linear and not inputs & reached:
            cut += equation.outvars
        else:
            kept.append(equation)
    needed = _variables(results)
    useful: list[Any] = []
    for equation in reversed(kept):
        if needed & {*equation.outvars}:
            needed |= _variables(equation.invars)
            useful.append(equation)
    return useful[::-1], cut


def _variables(atoms: Sequence[Any]) -> set[Any]:
    return {atom for atom in atoms if isinstance(atom, _Var)}
