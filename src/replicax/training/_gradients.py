"""Gradients with respect to variables: `rx.value_and_grad` and `rx.grad`.

JAX differentiates functions of arrays. So for the time of one call the variables are *bound*: reading one
gives the array that JAX differentiates with respect to. Writes (a moving average, say) can't happen inside,
since what they write exists only there. They are recorded, come out beside the loss, and are made
afterwards, in the order in which they were asked for.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, final, overload

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import current_program, fresh_traces
from replicax.collectives import offer_early_sum
from replicax.contexts import current, current_rows
from replicax.errors import TracingError, VariableError
from replicax.execution import explain_leaks
from replicax.training._microbatches import Microbatches, is_padding
from replicax.training._precision import MixedPrecision
from replicax.training._pytrees import flatten_variables, ordered_like
from replicax.types import VariableAggregation
from replicax.values import IndexedSlices
from replicax.variables import (
    Cell,
    Frame,
    RecordingFrame,
    Variable,
    Write,
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
    """A function that calls `fn` and also gives its gradients with respect to variables.

    In a replica function these are the replica's own gradients, of its own loss: combine them with
    `rx.Optimizer` or `ctx.all_reduce`. `fn` may read any variable, and write variables that it does not
    read again; the writes are made when the gradients are there.

    Args:
        fn: returns a scalar, the loss.
        variables: what to differentiate with respect to: a variable, or a structure of variables.
        has_aux: `fn` returns a pair, of the loss and anything else.
        microbatches: for less memory, call `fn` with this many parts of its array arguments, one after the
            other, and return the mean of losses and gradients. They are those of the whole batch if the
            loss is a mean over rows, or is computed by `rx.compute_average_loss` or
            `rx.compute_weighted_loss`. There are fewer parts if a replica has fewer rows. The auxiliary
            result is a list, one for each part.
        precision: a `MixedPrecision`: `fn` then sees these variables and its floating-point arguments in a
            smaller dtype, while gradients have the variables' own.

    Returns:
        A function like `fn` that returns `(loss, gradients)`, or `((loss, aux), gradients)` with `has_aux`;
        the gradients have the structure of `variables`, and the order of its dicts.

    Raises:
        VariableError: `variables` holds something else, or a variable of whole numbers.

    >>> w, b = rx.Variable([1.0, 2.0]), rx.Variable(0.5)
    >>> def loss(x):
    ...     return jnp.sum(w * x) + b
    >>> rx.value_and_grad(loss, {"w": w, "b": b})(jnp.array([3.0, 4.0]))
    (Array(11.5, dtype=float32), {'w': Array([3., 4.], dtype=float32), 'b': Array(1., dtype=float32)})
    """
    leaves, treedef = _flatten_variables(variables)
    if isinstance(microbatches, bool) or not isinstance(microbatches, int | np.integer) or microbatches < 1:
        raise ValueError(f"value_and_grad(microbatches={microbatches!r}): pass a whole number, 1 or more.")
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
        **options: as of `value_and_grad`.

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
                f"value_and_grad differentiates with respect to variables, got {leaf!r}. Make variables of "
                "arrays with `rx.create_variables(arrays)`, or use `jax.value_and_grad` for functions of "
                "arrays. Make Keras variables in a scope, after `import replicax.integrations.keras`."
            )
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise VariableError(
                f"The variable {leaf.name!r} holds {leaf.dtype} numbers, which have no gradient. Leave it "
                "out of the variables to differentiate with respect to."
            )
    names = [leaf.name for i, leaf in enumerate(leaves) if any(leaf is other for other in leaves[:i])]
    if names:
        raise VariableError(
            f"value_and_grad got {', '.join(names)} more than once. Name every variable once: its gradient "
            "is that of all its uses."
        )
    if not leaves:
        raise VariableError(
            "value_and_grad got no variables to differentiate with respect to. A model whose layers are "
            "made by its first call has none before: build it first (with Keras, `keras.Input` or "
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
        """The loss, the auxiliary result and the gradients; then make the writes that `fn` asked for."""
        if self._precision is not None:
            args, kwargs = self._precision.cast((args, kwargs))
        tapes: list[_Tape] = []

        def bound(fresh: bool, values: list[Any]) -> Any:
            tape, result = self._call(values, args, kwargs, fresh=fresh)
            tapes.append(tape)
            loss, aux = _split_result(self._fn, result, self._has_aux)
            return loss, (aux, tape.recorded())

        values = [variable.read_value() for variable in self._variables]
        with explain_leaks():
            try:
                differentiated = jax.value_and_grad(functools.partial(bound, False), has_aux=True)(values)
            except _FreshTapeNeeded:
                differentiated = jax.value_and_grad(functools.partial(bound, True), has_aux=True)(values)
        (loss, (aux, recorded)), gradients = differentiated
        tapes[-1].replay(recorded)
        return (loss, aux), gradients

    def probe(self, args: Any, kwargs: Any) -> None:
        """Call `fn` without gradients, and drop its writes."""
        if self._precision is not None:
            args, kwargs = self._precision.cast((args, kwargs))
        self._call([variable.read_value() for variable in self._variables], args, kwargs, fresh=True)

    def _call(self, values: list[Any], args: Any, kwargs: Any, *, fresh: bool) -> tuple[_Tape, Any]:
        if self._precision is not None:
            values = self._precision.cast(values)
        rows = current_rows()
        if rows is not None:
            rows.weights.restart()
        tape = _Tape(self._outer, self._variables, values, fresh=fresh)
        with use_frame(tape), fresh_traces() if fresh else contextlib.nullcontext():
            return tape, self._fn(*args, **kwargs)


class _FreshTapeNeeded(BaseException):
    """A bound variable, or what a replica knows, is read inside `scan`, `jit` or their like.

    JAX keeps their traces by function: the next call would get that of this one, with the array that the
    variable was bound to now. So it is all done again with `fresh_traces`. Not an `Exception`: no user code
    should catch it.
    """


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
    loss = jnp.asarray(loss)
    if loss.ndim:
        raise TypeError(
            f"value_and_grad: {name} must return a scalar loss, got shape {loss.shape}. Average it over "
            "the examples (`jnp.mean`, or `rx.compute_average_loss`)."
        )
    return loss.astype(jnp.float32) if loss.dtype in (jnp.bfloat16, jnp.float16) else loss, aux


@final
class _Tape(RecordingFrame):
    """Answers for the variables while JAX differentiates: bound values are read, writes recorded."""

    def __init__(
        self, outer: Frame, variables: Sequence[Variable], values: Sequence[Any], *, fresh: bool
    ) -> None:
        self._outer, self._fresh, self._program = outer, fresh, current_program()
        self._replica = current().replica
        self.is_one_replica = outer.is_one_replica
        self._cells = {v.ref(): _as_cell(v, value) for v, value in zip(variables, values, strict=True)}
        self._unknown: dict[Any, str] = {}
        self._writes: list[tuple[Variable, Write]] = []

    def load(self, variable: Variable) -> Cell:
        ref = variable.ref()
        if ref in self._unknown:
            raise TracingError(
                f"The variable {variable.name!r} is read after {self._unknown[ref]} in a function that "
                "rx.value_and_grad differentiates. What other replicas write to it is known only when the "
                "function has returned. Read it before, or use the value that you wrote."
            )
        if ref not in self._cells:
            return self._outer.load(variable)
        self._check_program()
        return self._cells[ref]

    def _check_program(self) -> None:
        if not self._fresh and current_program() is not self._program:
            raise _FreshTapeNeeded

    def require_own_trace(self) -> None:
        self._check_program()
        self._outer.require_own_trace()

    def record(self, variable: Variable, write: Write) -> Any:
        what = write.name
        if current_program() is not self._program:
            raise TracingError(
                f"{what} of the variable {variable.name!r} inside a function that JAX traces by itself "
                "(scan, cond, jit, ...), from which the new value could not come out. Return the value "
                "from that function and assign it afterwards."
            )
        if current().replica is not self._replica:
            raise TracingError(
                f"{what} of the variable {variable.name!r} in a merge_call or run inside a function that "
                "rx.value_and_grad differentiates. Write it in the function itself, or afterwards."
            )
        write = write._replace(operand=variable._checked(write.operand, what))
        self._writes.append((variable, write))
        return self._preview(variable, write)

    def _preview(self, variable: Variable, write: Write) -> Any:
        """What the variable holds after the write, where that does not depend on other replicas."""
        alone = variable.distribute_strategy.num_replicas_in_sync == 1
        ref = variable.ref()
        if not alone and not variable.layout.differs:
            self._unknown[ref] = write.name
            return None
        new = variable._fitted(write.applied_to(variable.read_value(), write.operand))
        self._cells[ref] = _as_cell(variable, new)
        return new

    def recorded(self) -> list[Any]:
        """What was written, as arrays that may leave the differentiated function."""
        return [jax.lax.stop_gradient(write.operand) for _, write in self._writes]

    def replay(self, operands: list[Any]) -> None:
        """Make the writes, now that the function has returned."""
        rows = current_rows()
        skip = None if rows is None else is_padding(rows)
        for (variable, write), operand in zip(self._writes, operands, strict=True):
            if skip is not None:
                operand = _unless(skip, variable, operand, write.name)
            variable._write(write.method, operand, False)

    # The rest is as outside.

    def store(self, variable: Variable, cell: Cell) -> None:
        self._outer.store(variable, cell)

    def adopt(self, variable: Variable) -> None:
        self._outer.adopt(variable)

    def creating(self) -> contextlib.AbstractContextManager[None]:
        return self._outer.creating()

    def initial_value(self, value: Any) -> Any:
        return self._outer.initial_value(value)


def _unless(skip: Any, variable: Variable, operand: Any, what: str) -> Any:
    """The operand of a write; where `skip` is true, one that changes nothing.

    The mean of a part that is all padding is not a number, and would stay in a moving average.
    """
    if isinstance(operand, IndexedSlices):
        unchanged: Any = _UNCHANGED.get(what)
        if unchanged is None:
            unchanged = variable.read_value()[jnp.asarray(operand.indices)]
        values = jnp.where(skip, jnp.asarray(unchanged, operand.values.dtype), operand.values)
        return IndexedSlices(values, operand.indices, operand.dense_shape)
    unchanged = _UNCHANGED.get(what)
    if unchanged is None:
        unchanged = variable.read_value()
        if not variable.layout.differs and variable.aggregation is VariableAggregation.SUM:
            unchanged = unchanged / variable.distribute_strategy.num_replicas_in_sync
    operand = jnp.asarray(operand)
    return jnp.where(skip, jnp.asarray(unchanged, operand.dtype), operand)


_UNCHANGED = {
    "assign_add": 0,
    "assign_sub": 0,
    "scatter_add": 0,
    "scatter_sub": 0,
    "scatter_mul": 1,
    "scatter_div": 1,
}
"""Operands that leave a variable as it is; for other writes, that is its value."""


def _as_cell(variable: Variable, value: Any) -> Cell:
    """The cell of a variable whose value here, in this replica, is `value`."""
    here = current()
    if variable.layout.differs and (
        here.replica is None or here.strategy is not variable.distribute_strategy
    ):
        raise VariableError(
            f"The ON_READ variable {variable.name!r} has a part on each replica: differentiate with "
            "respect to it in a replica function."
        )
    return variable.layout.local_cell(value)
