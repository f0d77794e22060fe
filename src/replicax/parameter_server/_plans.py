"""What a server does with the arrays of a push: a plan, which is sent once and used many times."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from replicax.parameter_server._packing import Packing
from replicax.values import IndexedSlices
from replicax.variables import METHODS

__all__ = ["Operand", "Plan", "ServerOptimizer", "Update", "WriteOne", "plan_number"]


@final
@dataclasses.dataclass(frozen=True)
class Operand:
    """One operand of a push: a number among its dense arrays, or, if `is_rows`, among its rows."""

    number: int
    is_rows: bool = False


@final
@dataclasses.dataclass(frozen=True)
class WriteOne:
    """Apply a method such as `assign_add` to the part of a variable."""

    key: str
    method: str
    operand: Operand


@final
@dataclasses.dataclass(frozen=True)
class Update:
    """Apply gradients with an optimizer; None for variables that the server does not have."""

    optimizer: str
    gradients: tuple[Operand | None, ...]


@final
@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
    """An optimizer as one server sees it: the whole structure, with only some of its parts.

    Args:
        transformation: computes new values and slots from gradients, slots and values.
        keys: the variables.
        slot_keys: the slots.
        absent: the shapes and dtypes that stand for those that the server does not have.
        owners: for each slot the number of the variable that it belongs to; None if that is not one.
        by_rows: the numbers of the variables whose rows without a gradient do not change.
    """

    transformation: Callable[..., Any]
    keys: tuple[str, ...]
    slot_keys: tuple[str, ...]
    absent: Mapping[str, Any]
    owners: tuple[int | None, ...]
    by_rows: frozenset[int]


@final
@dataclasses.dataclass(frozen=True)
class Plan:
    """The operations of a push, in order."""

    packing: Packing
    operations: tuple[WriteOne | Update, ...]

    def keys(self, optimizers: Mapping[str, ServerOptimizer], arrays: Mapping[str, Any]) -> list[str]:
        """The variables that it writes."""
        keys: dict[str, None] = {}
        for operation in self.operations:
            if isinstance(operation, WriteOne):
                keys[operation.key] = None
            else:
                optimizer = optimizers[operation.optimizer]
                own = (*optimizer.keys, *optimizer.slot_keys)
                keys.update(dict.fromkeys(key for key in own if key in arrays))
        return list(keys)

    def apply(
        self,
        optimizers: Mapping[str, ServerOptimizer],
        state: dict[str, Any],
        buffers: Sequence[Any],
        rows: Sequence[Any],
    ) -> dict[str, Any]:
        """The new arrays; traced and compiled once for each plan."""
        dense, state = self.packing.unpack(buffers), dict(state)
        for operation in self.operations:
            if isinstance(operation, WriteOne):
                old = state[operation.key]
                value = _operand(operation.operand, dense, rows)
                state[operation.key] = METHODS[operation.method].apply(old, value).astype(old.dtype)
            else:
                optimizer = optimizers[operation.optimizer]
                gradients = [None if g is None else _operand(g, dense, rows) for g in operation.gradients]
                state.update(_updated(optimizer, state, gradients))
        return state


def plan_number(plans: Mapping[int, Plan]) -> str:
    """Equal for equal plans, so that a server compiles only one of them."""
    content = [(server, plan.packing.entries, plan.operations) for server, plan in plans.items()]
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _operand(operand: Operand, dense: Sequence[Any], rows: Sequence[Any]) -> Any:
    if not operand.is_rows:
        return dense[operand.number]
    values, indices = rows[operand.number]
    return IndexedSlices(values, indices)


def _updated(
    optimizer: ServerOptimizer, state: Mapping[str, Any], gradients: Sequence[Any]
) -> dict[str, Any]:
    """The new values and slots of an update, as far as this server has them.

    If a gradient consists of rows, only those rows of its variable are updated, where that is exact.
    """
    rows = {
        i: gradient.indices
        for i, gradient in enumerate(gradients)
        if isinstance(gradient, IndexedSlices) and i in optimizer.by_rows
    }
    keys, owners = (*optimizer.keys, *optimizer.slot_keys), (*range(len(gradients)), *optimizer.owners)
    old = [_present(key, optimizer, state) for key in keys]
    part = [x if owner not in rows else x[rows[owner]] for x, owner in zip(old, owners, strict=True)]
    values, slots = part[: len(gradients)], part[len(gradients) :]
    given = [
        gradient.values.astype(value.dtype) if i in rows else _dense(gradient, value)
        for i, (gradient, value) in enumerate(zip(gradients, values, strict=True))
    ]
    new, new_slots = optimizer.transformation(given, slots, values)
    results = {}
    for key, owner, before, after in zip(keys, owners, old, (*new, *new_slots), strict=True):
        if key in state:
            after = after.astype(before.dtype)
            results[key] = after if owner not in rows else before.at[rows[owner]].set(after)
    return results


def _present(key: str, optimizer: ServerOptimizer, state: Mapping[str, Any]) -> Any:
    if key in state:
        return state[key]
    return jnp.zeros(optimizer.absent[key].shape, optimizer.absent[key].dtype)


def _dense(gradient: Any, value: Any) -> Any:
    if gradient is None:
        return jnp.zeros(value.shape, value.dtype)
    if isinstance(gradient, IndexedSlices):
        zeros = jnp.zeros(value.shape, gradient.values.dtype)
        gradient = zeros.at[gradient.indices].add(gradient.values)
    return jax.lax.convert_element_type(gradient, value.dtype)
