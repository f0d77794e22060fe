"""Creating a variable: checking the arguments and computing the initial value."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_staging
from replicax._messages import user_line
from replicax._recording import unrecorded
from replicax.errors import VariableError, VariableTypeError
from replicax.topology import is_key
from replicax.types import (
    AggregationLike,
    SynchronizationLike,
    VariableAggregation,
    VariableSynchronization,
)
from replicax.values import Mirrored, PerReplica, TensorShape, is_number, owned
from replicax.variables._frames import current_frame
from replicax.variables._partition import checked_parts
from replicax.variables._readable import Readable
from replicax.variables._spec import VariableSpec
from replicax.variables._traced_value import TracedValue, trace_value

__all__ = ["NewVariable", "awaiting_values", "prepare_variable"]


class NewVariable(NamedTuple):
    """What a pending restore sees of a variable that is being created."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    beside: Any
    """A variable with the same parent in the checkpoint, or the parent itself; None if neither is known."""
    path: str
    """The path of the new variable, relative to its parent."""


awaiting_values: list[weakref.WeakMethod[Callable[[NewVariable], Any]]] = []
"""Pending restores, called for each new variable; they return its saved value or None."""

_Enum = TypeVar("_Enum", bound=enum.Enum)


def prepare_variable(
    initial_value: Any = None,
    trainable: bool | None = None,
    name: str | None = None,
    dtype: Any = None,
    synchronization: SynchronizationLike = VariableSynchronization.AUTO,
    aggregation: AggregationLike = VariableAggregation.NONE,
    shape: Any = None,
    constraint: Callable[[Any], Any] | None = None,
    beside: tuple[Any, str] = (None, ""),
    is_slot: bool = False,
    partition: Any = None,
    in_parts: bool = False,
    slot_of: tuple[Any, ...] = (),
) -> tuple[VariableSpec, Any]:
    """Check the arguments of `rx.Variable`; returns the spec and the initial value.

    The arguments that `rx.Variable` does not have:

    * `beside`: the variable's position in a checkpoint, if known, for which a pending restore may have a
      value (see `NewVariable`);
    * `is_slot`: whether it is optimizer state, and `slot_of`, the variables that the state belongs to;
    * `in_parts`: if `initial_value` is a function and `shape` is given, trace the function, so that each
      device can compute its own part of the value.
    """
    synchronization = _member(VariableSynchronization, synchronization, "synchronization")
    aggregation = _member(VariableAggregation, aggregation or "NONE", "aggregation")
    _check_dtype(dtype, name)
    if not isinstance(trainable, bool | np.bool_ | None):
        raise VariableTypeError(
            f"The variable {name or 'Variable'!r} was given trainable={trainable!r}: pass True, False or "
            "None."
        )
    if initial_value is None:
        raise VariableError("A variable needs an initial_value: an array, or a function that returns one.")
    if in_parts and shape is not None and callable(initial_value) and not is_staging():
        initial_value = trace_value(initial_value, dtype, name or "Variable")
    value = _initial_array(initial_value, dtype)
    if not (
        synchronization is VariableSynchronization.ON_READ and aggregation is VariableAggregation.SUM
    ):  # the initial value is what each part starts with, but a saved value is the total
        value = _pending(f"{name or 'Variable'}:0", value, beside)
    if shape is not None and tuple(shape) != value.shape:
        raise VariableError(
            f"The variable {name or 'Variable'!r} was given shape={tuple(shape)} and an initial value "
            f"of shape {value.shape}. A variable's shape is that of its initial value and never "
            "changes."
        )
    on_read = synchronization is VariableSynchronization.ON_READ
    spec = VariableSpec(
        name=name or "Variable",
        shape=TensorShape(value.shape),
        dtype=np.dtype(value.dtype),
        trainable=(not on_read) if trainable is None else bool(trainable),
        synchronization=synchronization,
        aggregation=aggregation,
        constraint=constraint,
        made_at=user_line(),
        is_slot=is_slot,
        partition=None if partition is None else checked_parts(partition, f"The variable {name!r}"),
        slot_of=slot_of,
    )
    return spec, value


def _pending(name: str, value: Any, beside: tuple[Any, str]) -> Any:
    """The value that a restored checkpoint has for this variable, else its initial value."""
    for reference in list(awaiting_values):
        find_value = reference()
        if find_value is None:
            awaiting_values.remove(reference)
            continue
        found = find_value(NewVariable(name, value.shape, value.dtype, *beside))
        if found is not None:
            return jnp.asarray(found, value.dtype)
    return value


def _member(kind: type[_Enum], value: Any, argument: str) -> _Enum:
    if isinstance(value, kind):
        return value
    names = ", ".join(kind.__members__)
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    raise VariableError(f"{argument} must be one of rx.{kind.__name__}.{{{names}}}, got {value!r}.")


def _check_dtype(dtype: Any, name: str | None) -> None:
    try:
        is_numeric = dtype is None or np.dtype(dtype).kind not in "OSUmM"
    except TypeError:
        is_numeric = False
    if not is_numeric:
        raise VariableTypeError(
            f"The variable {name or 'Variable'!r} was given dtype={dtype!r}, which is not the dtype of an "
            "array of numbers. Pass one such as 'float32' or jnp.bfloat16, or leave it out."
        )


def _initial_array(initial_value: Any, dtype: Any) -> Any:
    value = unrecorded(current_frame().initial_value(unrecorded(initial_value)))
    if isinstance(value, TracedValue):
        return value
    if isinstance(value, Readable):
        value = value.read_value()
    if isinstance(value, PerReplica):
        raise VariableError(
            "The initial value of a variable can't be a PerReplica: it must be the same for all "
            "replicas. Reduce it first, or assign the replicas' values in `strategy.run` to an "
            "ON_READ variable."
        )
    if isinstance(value, Mirrored):
        value = value.to_plain()
    if is_key(value):
        raise VariableError(
            "A variable can't hold typed random keys. Store their data, "
            "`rx.Variable(jax.random.key_data(key))`, and use `jax.random.wrap_key_data(v.value)`."
        )
    try:
        array = value if is_number(value) else np.asarray(value, dtype)
        dtype = dtype or jnp.result_type(array)
        # JAX itself warns that it makes 64 bits 32.
        if isinstance(array, np.ndarray) and jax.dtypes.canonicalize_dtype(dtype) == np.dtype(dtype):
            return owned(array, dtype)
        return jnp.asarray(array, dtype)
    except TypeError as error:
        raise VariableError(
            f"The initial value of a variable must be an array or convert to one, got {value!r}."
        ) from error
