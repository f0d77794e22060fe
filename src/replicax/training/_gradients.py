"""Gradients with respect to variables: `rx.value_and_grad` and `rx.grad`.

JAX differentiates functions of arrays. So during a call the variables are *bound*: reading one returns the
array that JAX differentiates with respect to. Writes, for example to a moving average, are held back while
the loss function runs and applied in order when it returns; see `_gradient_frame.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, final, overload

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import fresh_traces
from replicax.collectives import offer_early_sum
from replicax.contexts import current
from replicax.errors import VariableError
from replicax.execution import explain_leaks
from replicax.training._gathered import GatheredValues
from replicax.training._gradient_frame import FreshTracesNeeded, GradientFrame
from replicax.training._microbatches import Microbatches
from replicax.training._precision import MixedPrecision
from replicax.training._pytrees import flatten_variables, ordered_like, repeated_names
from replicax.types import Untyped
from replicax.variables import (
    Variable,
    current_frame,
    use_frame,
)

__all__ = ["grad", "value_and_grad"]

_P = ParamSpec("_P")
_Loss = TypeVar("_Loss")
_Variables = TypeVar("_Variables")


@overload
def value_and_grad(
    fn: Callable[_P, _Loss],
    variables: Untyped,
    *,
    has_aux: Literal[False] = ...,
    microbatches: int = ...,
    precision: MixedPrecision | None = ...,
) -> Callable[_P, tuple[_Loss, Any]]: ...
@overload
def value_and_grad(
    fn: Callable[_P, _Loss],
    variables: Variable,
    *,
    has_aux: Literal[False] = ...,
    microbatches: int = ...,
    precision: MixedPrecision | None = ...,
) -> Callable[_P, tuple[_Loss, jax.Array]]: ...
@overload
def value_and_grad(
    fn: Callable[_P, _Loss],
    variables: _Variables,
    *,
    has_aux: Literal[False] = ...,
    microbatches: int = ...,
    precision: MixedPrecision | None = ...,
) -> Callable[_P, tuple[_Loss, _Variables]]: ...
@overload
def value_and_grad(
    fn: Callable[_P, tuple[_Loss, Any]],
    variables: _Variables,
    *,
    has_aux: bool,
    microbatches: int = ...,
    precision: MixedPrecision | None = ...,
) -> Callable[_P, tuple[tuple[_Loss, Any], _Variables]]: ...
def value_and_grad(
    fn: Callable[..., Any],
    variables: Any,
    *,
    has_aux: bool = False,
    microbatches: int = 1,
    precision: MixedPrecision | None = None,
) -> Callable[..., Any]:
    """Make a function that calls `fn` and returns its value and its gradients with respect to variables.

    In a replica function these are the gradients of the replica's own loss: combine them with
    `rx.Optimizer` or `ctx.all_reduce`. `fn` may read any variable, and write variables that it does not
    read again; the writes are applied after the gradients have been computed.

    Args:
        fn: returns a scalar, the loss.
        variables: what to differentiate with respect to: a variable, or a structure of variables.
        has_aux: whether `fn` returns a pair of the loss and auxiliary data.
        microbatches: to save memory, split the array arguments into this many parts, call `fn` with one
            part after the other, and return the mean of the losses and gradients. The result is that of
            the whole batch if the loss is a mean over rows, or is computed by `rx.compute_average_loss` or
            `rx.compute_weighted_loss`. There are fewer parts if a replica has fewer rows. The auxiliary
            data is a list with one entry per part.
        precision: a `MixedPrecision`: `fn` sees these variables and its floating-point arguments in a
            smaller dtype, while gradients have the dtype of their variable.

    Returns:
        A function like `fn` that returns `(loss, gradients)`, or `((loss, aux), gradients)` with `has_aux`.
        The gradients have the structure of `variables`, including the order of dict keys.

    Raises:
        VariableError: `variables` contains something else, or an integer variable.

    >>> w, b = rx.Variable([1.0, 2.0]), rx.Variable(0.5)
    >>> def loss(x):
    ...     return jnp.sum(w * x) + b
    >>> rx.value_and_grad(loss, {"w": w, "b": b})(jnp.array([3.0, 4.0]))
    (Array(11.5, dtype=float32), {'w': Array([3., 4.], dtype=float32), 'b': Array(1., dtype=float32)})
    """
    leaves, treedef = _flatten_variables(variables)
    if isinstance(microbatches, bool) or not isinstance(microbatches, int | np.integer) or microbatches < 1:
        raise ValueError(f"value_and_grad(microbatches={microbatches!r}): pass an int, 1 or more.")
    if precision is not None and not isinstance(precision, MixedPrecision):
        raise TypeError(f"value_and_grad(precision={precision!r}): pass an `rx.MixedPrecision(...)`.")

    @functools.wraps(fn)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        if precision is not None:
            precision.warn_of_captured(fn, (args, kwargs))
        call = _LossCall(fn, leaves, has_aux, precision)
        if microbatches == 1:
            (loss, aux), gradients = call.differentiate(args, kwargs)
        else:
            parts = Microbatches(microbatches, args, kwargs)
            (loss, aux), gradients = parts.accumulate(call.differentiate, call.probe)
        offer_early_sum(loss)
        result = (loss, aux) if has_aux else loss
        return result, ordered_like(variables, treedef.unflatten(gradients))

    return differentiated


@overload
def grad(
    fn: Callable[_P, Any], variables: Untyped, *, has_aux: bool = ..., **options: Any
) -> Callable[_P, Any]: ...
@overload
def grad(
    fn: Callable[_P, Any], variables: Variable, *, has_aux: Literal[False] = ..., **options: Any
) -> Callable[_P, jax.Array]: ...
@overload
def grad(
    fn: Callable[_P, Any], variables: _Variables, *, has_aux: Literal[False] = ..., **options: Any
) -> Callable[_P, _Variables]: ...
@overload
def grad(
    fn: Callable[_P, Any], variables: _Variables, *, has_aux: bool, **options: Any
) -> Callable[_P, tuple[_Variables, Any]]: ...
def grad(fn: Callable[..., Any], variables: Any, **options: Any) -> Callable[..., Any]:
    """`rx.value_and_grad` without the value.

    Args:
        fn: returns a scalar, the loss.
        variables: what to differentiate with respect to: a variable, or a structure of variables.
        **options: the other arguments of `value_and_grad`.

    Returns:
        A function like `fn` that returns the gradients, or `(gradients, aux)` with `has_aux`.

    >>> w = rx.Variable(3.0)
    >>> rx.grad(lambda: w**2, w)()
    Array(6., dtype=float32)
    """
    with_value = value_and_grad(fn, variables, **options)

    @functools.wraps(fn)
    def gradients_only(*args: Any, **kwargs: Any) -> Any:
        result, gradients = with_value(*args, **kwargs)
        return (gradients, result[1]) if options.get("has_aux") else gradients

    return gradients_only


def _flatten_variables(variables: Any) -> tuple[list[Variable], Any]:
    _, leaves, treedef = flatten_variables(variables)
    for leaf in leaves:
        if not isinstance(leaf, Variable):
            raise VariableError(
                f"value_and_grad differentiates with respect to variables, got {leaf!r}. Create "
                "variables from arrays with `rx.create_variables(arrays)`, or use `jax.value_and_grad` "
                "for functions of arrays. Create Keras variables in a strategy's scope."
            )
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise VariableError(
                f"The variable {leaf.name!r} has dtype {leaf.dtype}, which has no gradient. Leave it out "
                "of the variables to differentiate with respect to."
            )
    names = repeated_names(leaves)
    if names:
        raise VariableError(
            f"value_and_grad got {', '.join(names)} more than once. Pass each variable once: its gradient "
            "covers all its uses."
        )
    if not leaves:
        raise VariableError(
            "value_and_grad got no variables to differentiate with respect to. A model that creates its "
            "layers in its first call has none before that: build it first (with Keras, `keras.Input` or "
            "`model.build(shape)`)."
        )
    return leaves, treedef


@final
class _LossCall:
    """Calls a loss function with variables bound to values."""

    def __init__(
        self,
        fn: Callable[..., Any],
        variables: Sequence[Variable],
        has_aux: bool,
        precision: MixedPrecision | None,
    ) -> None:
        self._fn, self._variables, self._has_aux, self._precision = fn, variables, has_aux, precision
        self._outer = current_frame()

    def differentiate(self, args: Any, kwargs: Any) -> tuple[tuple[Any, Any], list[Any]]:
        """Compute the loss, the auxiliary data and the gradients, then apply the writes of `fn`."""
        if self._precision is not None:
            args, kwargs = self._precision.cast((args, kwargs))
        frames: list[GradientFrame] = []

        values = GatheredValues(self._outer, self._variables)

        def bound(fresh: bool, inputs: list[Any]) -> Any:
            frame, result = self._call(inputs, args, kwargs, fresh=fresh)
            frames.append(frame)
            loss, aux = _split_result(self._fn, result, self._has_aux)
            return loss, (aux, frame.recorded())

        def differentiated(fresh: bool) -> Any:
            loss_fn = values.gathering(functools.partial(bound, fresh))
            return jax.value_and_grad(loss_fn, has_aux=True)(values.inputs)

        with explain_leaks():
            try:
                result = differentiated(fresh=False)
            except FreshTracesNeeded:
                result = differentiated(fresh=True)
        (loss, (aux, recorded)), gradients = result
        frames[-1].replay(recorded)
        return (loss, aux), values.gradients(gradients)

    def probe(self, args: Any, kwargs: Any) -> None:
        """Call `fn` without gradients, and discard its writes."""
        if self._precision is not None:
            args, kwargs = self._precision.cast((args, kwargs))
        self._call([variable.read_value() for variable in self._variables], args, kwargs, fresh=True)

    def _call(self, values: list[Any], args: Any, kwargs: Any, *, fresh: bool) -> tuple[GradientFrame, Any]:
        if self._precision is not None:
            values = self._precision.cast(values)
        rows = current().rows
        if rows is not None:
            rows.weights.restart()
        frame = GradientFrame(self._outer, self._variables, values, fresh=fresh)
        with use_frame(frame), fresh_traces() if fresh else contextlib.nullcontext():
            return frame, self._fn(*args, **kwargs)


def _split_result(fn: Callable[..., Any], result: Any, has_aux: bool) -> tuple[Any, Any]:
    name = getattr(fn, "__name__", repr(fn))
    loss, aux = result, None
    if has_aux:
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                f"value_and_grad(has_aux=True): {name} must return (loss, aux), got {type(result)}."
            )
        loss, aux = result
    elif isinstance(result, tuple):
        raise TypeError(
            f"value_and_grad: {name} returned a tuple. If it returns (loss, aux), pass has_aux=True."
        )
    return _scalar_loss(name, loss), aux


def _scalar_loss(name: str, loss: Any) -> jax.Array:
    """The loss as a scalar of at least 32 bits."""
    if loss is None:
        raise TypeError(
            f"value_and_grad: {name} returned None instead of a scalar loss. Does it lack a `return`?"
        )
    loss = jnp.asarray(loss)
    if loss.ndim:
        raise TypeError(
            f"value_and_grad: {name} must return a scalar loss, got shape {loss.shape}. Average it over "
            "the examples (`jnp.mean`, or `rx.compute_average_loss`)."
        )
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise TypeError(
            f"value_and_grad: {name} must return a floating-point scalar, got {loss.dtype}. Only real "
            "floating-point losses have gradients: compute the loss with such numbers."
        )
    return loss.astype(jnp.float32) if loss.dtype in (jnp.bfloat16, jnp.float16) else loss
