"""The properties of a variable, and the checks on values written to it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import VariableError, VariableTypeError
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.values import IndexedSlices, Mirrored, PerReplica, TensorShape, is_array

__all__ = ["VariableSpec"]


@final
@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """The immutable properties of a variable."""

    name: str
    shape: TensorShape
    dtype: np.dtype
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation
    constraint: Callable[[Any], Any] | None
    made_at: str
    is_slot: bool = False
    """Whether it is optimizer state."""
    partition: tuple[int, ...] | None = None
    """The number of parts along each axis, for the devices of a replica; None if each has a copy."""
    partition_rule: str | None = None
    """The rule that gave it the partition."""
    slot_of: tuple[Any, ...] = ()
    """The variables that this optimizer state belongs to: one, or all that the optimizer updates."""

    @property
    def num_bytes(self) -> int:
        """The size of the value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def check_mean(self) -> None:
        """Raise if the aggregation is MEAN but the dtype can't hold fractions."""
        mean = self.aggregation is VariableAggregation.MEAN
        if mean and not jnp.issubdtype(self.dtype, jnp.inexact):
            raise VariableError(
                f"The variable '{self.name}:0' is {self.dtype}, but its aggregation MEAN produces "
                "fractions. Use a float dtype, or another aggregation."
            )

    def from_python(self, value: Any, what: str) -> Any:
        """Convert a Python value to an array; integers get the variable's dtype."""
        try:
            array = np.asarray(value)
            whole = array.dtype == np.asarray(0).dtype and all(
                type(x) is int for x in jax.tree.leaves(value)
            )
            if whole and jnp.issubdtype(self.dtype, np.number):
                for extreme in (array.min(), array.max()) if array.size else ():
                    self._check_dtype(int(extreme), what)
                return jnp.asarray(array, self.dtype)
            return jnp.asarray(value)
        except (TypeError, ValueError) as error:
            if isinstance(error, VariableError):
                raise
            kind = VariableTypeError if isinstance(error, TypeError) else VariableError
            raise kind(
                f"{what} of the variable '{self.name}:0' needs an array or something that converts to one, "
                f"got {value!r}."
            ) from error

    def check_rows(self, rows: IndexedSlices, what: str) -> None:
        """Raise unless the values of `rows` can be written into rows of the variable."""
        if not self.shape:
            raise VariableError(
                f"{what} got rows for the variable '{self.name}:0', which is a scalar. Use `assign` with a "
                "number."
            )
        values, indices = (_described(part) for part in (rows.values, rows.indices))
        if values is None or indices is None:
            return  # replicas may have different numbers of rows
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            raise VariableError(
                f"{what} of the variable '{self.name}:0' takes integer indices, got {indices.dtype}."
            )
        if not _broadcasts(values.shape, (*indices.shape, *self.shape[1:])):
            raise VariableError(
                f"{what} of the variable '{self.name}:0', which has shape {self.shape}, got values of "
                f"shape {values.shape} for row numbers of shape {indices.shape}."
            )
        self._check_dtype(values, what)

    def check_places(self, places: IndexedSlices, what: str) -> None:
        """Raise unless the values of `places` can be written at their coordinates."""
        values, indices = (_described(part) for part in (places.values, places.indices))
        if values is None or indices is None:
            return
        depth = indices.shape[-1] if indices.ndim else 0
        if not 1 <= depth <= len(self.shape) or not jnp.issubdtype(indices.dtype, jnp.integer):
            raise VariableError(
                f"{what} of the variable '{self.name}:0', which has shape {self.shape}, takes "
                f"integer coordinates, from 1 to {len(self.shape)} of them along the last axis; got "
                f"indices of shape {indices.shape} and dtype {indices.dtype}."
            )
        wanted = (*indices.shape[:-1], *self.shape[depth:])
        if not _broadcasts(values.shape, wanted):
            raise VariableError(
                f"{what} of the variable '{self.name}:0', which has shape {self.shape}, got updates of "
                f"shape {values.shape} for indices of shape {indices.shape}; expected {wanted}."
            )
        self._check_dtype(values, what)

    def check_fits(self, value: Any, what: str) -> None:
        """Raise unless `value` can be written without loss."""
        shape = np.shape(value)
        if not _broadcasts(shape, self.shape):
            raise VariableError(
                f"{what} of the variable '{self.name}:0', which has shape {self.shape}, got a value "
                f"of shape {shape}."
            )
        self._check_dtype(value, what)

    def _check_dtype(self, value: Any, what: str) -> None:
        if isinstance(value, int) and jnp.issubdtype(self.dtype, jnp.integer):
            limits = jnp.iinfo(self.dtype)
            if not limits.min <= value <= limits.max:
                raise VariableError(
                    f"{what} of the variable '{self.name}:0', which is {self.dtype}, got {value}, which is "
                    f"not between {limits.min} and {limits.max}."
                )
            return
        dtype = jnp.result_type(value)
        weak = isinstance(value, bool | int | float | complex) or getattr(value, "weak_type", False)
        fits = np.can_cast(dtype, self.dtype, "same_kind" if weak else "safe")
        if weak and not fits:
            fits = jnp.issubdtype(dtype, jnp.integer) and jnp.issubdtype(self.dtype, jnp.inexact)
        if not fits:
            raise VariableError(
                f"{what} of the variable '{self.name}:0', which is {self.dtype}, got a value of dtype "
                f"{dtype}, which it can't hold without loss. Convert it: "
                f"`value.astype(jnp.{self.dtype})`."
            )


def _described(part: Any) -> Any:
    """The shape and dtype of values for rows; None if they differ between replicas."""
    if isinstance(part, PerReplica):
        return part.uniform
    if isinstance(part, Mirrored):
        part = part.whole
    return part if is_array(part) else np.asarray(part)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False
