"""Whether an update may skip the rows of a variable that have no gradient.

That is exact if a zero gradient changes neither a row nor its slots, as with plain `sgd` and `adagrad`;
momentum and weight decay change every row in every update. In addition, no element may depend on another
one, so that rows can be updated separately. Both can be seen in JAX's trace of the transformation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax._jax import is_literal
from replicax.parameter_server._separable import INDEPENDENT, Flow
from replicax.training import Transformation
from replicax.variables import Variable

__all__ = ["updated_by_rows"]

_ZERO = "zero"
_OTHER = "other"

# fmt: off
_ZERO_OF_ZERO = frozenset(
    [
        "abs", "broadcast_in_dim", "cbrt", "convert_element_type", "copy", "copy_p", "expm1", "log1p",
        "neg", "real", "reduce_precision", "reshape", "sign", "sin", "sqrt", "square", "stop_gradient",
        "tan", "tanh",
    ]
)
# fmt: on
"""Operations that map zero to zero."""
_SAME = frozenset(["copy", "copy_p", "stop_gradient", "convert_element_type"])
"""Operations that return their input if the dtype stays the same."""


def updated_by_rows(
    transformation: Transformation,
    variables: Sequence[Variable],
    slots: Sequence[Variable],
    owners: Sequence[int | None],
) -> frozenset[int]:
    """The numbers of the variables whose rows without a gradient do not change.

    Args:
        transformation: what optax computes.
        variables: what it updates.
        slots: its state.
        owners: for each slot the number of the variable that it belongs to, if it is one.
    """
    values, state = ([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in own] for own in (variables, slots))
    jaxpr = jax.make_jaxpr(lambda g, s, v: transformation(g, s, v))(values, state, values).jaxpr
    numbers = list(range(len(variables)))
    shapes = {i: variable.shape for i, variable in enumerate(variables)}
    of_slots = [INDEPENDENT[0] if owner is None else owner for owner in owners]
    depends = Flow(shapes).outputs(jaxpr, [*numbers, *of_slots, *numbers])
    given = [*[_ZERO] * len(variables), *(("slot", j) for j in range(len(slots)))]
    becomes = _without_gradient(jaxpr, [*given, *(("value", i) for i in numbers)])
    of_values = zip(numbers, depends, becomes, strict=False)
    kept = {i for i, source, what in of_values if shapes[i] and source == i and what == ("value", i)}
    rest = zip(owners, depends[len(variables) :], becomes[len(variables) :], slots, strict=True)
    for j, (owner, source, what, slot) in enumerate(rest):
        if owner is None and source not in INDEPENDENT:
            return frozenset()
        if owner is not None and not (
            source == owner and what == ("slot", j) and slot.shape == shapes[owner]
        ):
            kept.discard(owner)
    return frozenset(kept)


def _without_gradient(jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
    """What the outputs of a program are, given what its inputs are: zero, one of the inputs, or neither."""
    known: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))

    def look(atom: Any) -> Any:
        if is_literal(atom):
            return _ZERO if not np.any(atom.val) else _OTHER
        return known.get(atom, _OTHER)

    for equation in jaxpr.eqns:
        own = [look(atom) for atom in equation.invars]
        known.update(zip(equation.outvars, _results(equation, own), strict=True))
    return [look(atom) for atom in jaxpr.outvars]


def _results(equation: Any, own: list[Any]) -> list[Any]:
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if inner is not None and len(getattr(inner, "jaxpr", inner).invars) == len(own):
        return _without_gradient(getattr(inner, "jaxpr", inner), own)
    return [_result(equation, own)] * len(equation.outvars)


def _result(equation: Any, own: list[Any]) -> Any:
    name, params = equation.primitive.name, equation.params
    if name in _SAME and equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype:
        return own[0]
    if name in _ZERO_OF_ZERO or (name == "integer_pow" and params["y"] > 0):
        return _ZERO if own[0] == _ZERO else _OTHER
    if name == "mul":
        return _ZERO if _ZERO in own else _OTHER
    if name == "div":
        return _ZERO if own[0] == _ZERO else _OTHER
    if name in ("add", "add_any") and own[0] == _ZERO:
        return own[1]
    if name in ("add", "add_any", "sub") and own[1] == _ZERO:
        return own[0]
    if name in ("max", "min") and own[0] == own[1]:
        return own[0]
    if name == "select_n" and len(set(own[1:])) == 1:
        return own[1]
    return _OTHER
