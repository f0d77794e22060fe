"""Whether each server can compute its part of an update alone.

A server has some of the variables of an optimizer, or some rows of them, and runs the same transformation
as a single process would. That is exact if the new value of a variable depends on no other variable and,
if the variable is divided, if each element depends on no other element. Both can be seen in JAX's trace of
the transformation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import numpy as np

from replicax._jax import is_literal
from replicax.errors import VariableError
from replicax.parameter_server._placement import placement_of
from replicax.variables import Variable

__all__ = ["INDEPENDENT", "Flow", "check_separable"]

_SHARED = "shared"  # the same number for all variables
_FIXED = "fixed"  # an array that no variable determines, such as a mask
INDEPENDENT = (_SHARED, _FIXED)
_MIXED = "mixed"  # depends on several variables, or on several elements of a divided one

# fmt: off
_ELEMENTWISE = frozenset(
    [
        "abs", "add", "add_any", "and", "atan2", "cbrt", "ceil", "clamp", "convert_element_type",
        "copy", "copy_p", "cos", "div", "eq", "erf", "exp", "exp2", "expm1", "floor", "ge", "gt",
        "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul",
        "ne", "neg", "nextafter", "not", "or", "pow", "real", "reduce_precision", "rem", "round",
        "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh",
        "xor",
    ]
)
# fmt: on


def check_separable(
    optimizer: Any,
    computation: Callable[..., Any],
    variables: Sequence[Variable],
    slots: Sequence[Any],
    owners: Sequence[Variable | None],
) -> None:
    """Raise unless servers can compute the updates of their own parts.

    Args:
        optimizer: the optimizer, for messages.
        computation: computes new values and slots from gradients, slots and values.
        variables: the variables that it updates.
        slots: its state, or what has the same shapes and dtypes.
        owners: for each slot the variable that it belongs to; None if it belongs to all of them.
    """
    placements = [placement_of(variable) for variable in variables]
    divided = {i for i, placement in enumerate(placements) if placement.is_divided}
    if not divided and len({part.server for p in placements for part in p.parts}) == 1:
        return
    labels = _labels_of_update(computation, variables, slots, owners, divided)
    for i, (variable, label) in enumerate(zip(variables, labels, strict=False)):
        if label not in (i, *INDEPENDENT):
            raise VariableError(_message(optimizer, variable, i in divided))
    numbers = {variable.ref(): i for i, variable in enumerate(variables)}
    for owner, label in zip(owners, labels[len(variables) :], strict=True):
        own = None if owner is None else numbers[owner.ref()]
        if label not in (own, *INDEPENDENT):
            raise VariableError(_message(optimizer, variables[own or 0], own in divided))


def _with_shape(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "shape") else np.asarray(leaf)


def _message(optimizer: Any, variable: Variable, is_divided: bool) -> str:
    if is_divided:
        return (
            f"The transformation of {optimizer!r} does not update the elements of {variable.name!r} one by "
            "one, but that variable is divided over several parameter servers. Use a transformation that "
            "does, such as optax.sgd, optax.adam or optax.adagrad, or keep the variable whole: leave out "
            "the partitioner, or let it return 1 for this variable."
        )
    return (
        f"The transformation of {optimizer!r} updates {variable.name!r} with what it computes from other "
        "variables too (a global norm, for example), but the variables are on several parameter servers. "
        "Do that part in the step, where all gradients are available, "
        "`gradients, _ = optax.clip_by_global_norm(1.0).update(gradients, optax.EmptyState())`, "
        "or use num_ps=1."
    )


def _labels_of_update(
    computation: Callable[..., Any],
    variables: Sequence[Variable],
    slots: Sequence[Any],
    owners: Sequence[Variable | None],
    divided: set[int],
) -> list[Any]:
    """For each new value, then each new slot: the number of the variable that it depends on."""
    values = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
    state = [jax.ShapeDtypeStruct(slot.shape, slot.dtype) for slot in map(_with_shape, slots)]
    closed = jax.make_jaxpr(lambda g, s, v: computation(g, s, v))(values, state, values)
    numbers = {variable.ref(): i for i, variable in enumerate(variables)}
    of_slots = [_SHARED if owner is None else numbers[owner.ref()] for owner in owners]
    own = list(range(len(variables)))
    shapes = {i: variables[i].shape for i in divided}
    return Flow(shapes).outputs(closed.jaxpr, [*own, *of_slots, *own])


@final
class Flow:
    """Follows through a program which variable each value depends on."""

    def __init__(self, divided: Mapping[int, tuple[int, ...]]) -> None:
        """`divided`: the shapes of the variables that are divided."""
        self._divided = divided

    def outputs(self, jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
        """The labels of the outputs of a program."""
        labels: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        labels.update({v: _FIXED if v.aval.shape else _SHARED for v in jaxpr.constvars})

        def label(atom: Any) -> Any:
            if is_literal(atom):
                return _FIXED if np.shape(atom.val) else _SHARED
            return labels[atom]

        for equation in jaxpr.eqns:
            own = [label(atom) for atom in equation.invars]
            labels.update(zip(equation.outvars, self._results(equation, own), strict=True))
        return [label(atom) for atom in jaxpr.outvars]

    def _results(self, equation: Any, labels: list[Any]) -> list[Any]:
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if inner is not None and len(getattr(inner, "jaxpr", inner).invars) == len(labels):
            return self.outputs(getattr(inner, "jaxpr", inner), labels)
        variables = {x for x in labels if x not in INDEPENDENT}
        if not variables:
            return [self._constant(equation, labels, out) for out in equation.outvars]
        if len(variables) > 1 or _MIXED in variables:
            return [_MIXED] * len(equation.outvars)
        (variable,) = variables
        shape = self._divided.get(variable)
        if shape is None:
            return [variable] * len(equation.outvars)
        by_element = equation.primitive.name in _ELEMENTWISE and _FIXED not in labels
        return [variable if by_element and out.aval.shape == shape else _MIXED for out in equation.outvars]

    def _constant(self, equation: Any, labels: list[Any], out: Any) -> str:
        uniform = equation.primitive.name in _ELEMENTWISE or equation.primitive.name == "broadcast_in_dim"
        return _SHARED if not out.aval.shape or (uniform and _FIXED not in labels) else _FIXED
