"""Memory per device, by purpose: parameters, optimizer state, activations, ..."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Iterable
from typing import Any, Literal, final

import jax

from replicax.variables._store import Store
from replicax.variables._variable import Variable

__all__ = ["Memory", "VariableKind", "bytes_on_device", "kind_of", "stored_bytes", "variables_in"]

VariableKind = Literal["parameters", "optimizer", "other_state"]


@final
@dataclasses.dataclass(frozen=True)
class Memory:
    """The bytes that a step needs on each device, by purpose."""

    parameters: int = 0
    """Trainable variables."""
    optimizer: int = 0
    """The slots of optimizers."""
    other_state: int = 0
    """All other variables: counters, metrics, moving averages."""
    arguments: int = 0
    """The arguments of the step, such as a batch."""
    results: int = 0
    """What the step returns."""
    temporaries: int = 0
    """Buffers that exist only while the step runs: activations, gradients, gathered parameters."""

    @classmethod
    def of_variables(cls, sizes: Iterable[tuple[Variable, int]], **others: int) -> Memory:
        """The memory of variables with these sizes, besides `others`."""
        totals: dict[str, int] = {}
        for variable, size in sizes:
            kind = kind_of(variable)
            totals[kind] = totals.get(kind, 0) + size
        return cls(**totals, **others)

    @property
    def state(self) -> int:
        """All variables."""
        return self.parameters + self.optimizer + self.other_state

    @property
    def peak(self) -> int:
        """The total that a device needs to run the step."""
        return self.state + self.arguments + self.results + self.temporaries


def kind_of(variable: Variable) -> VariableKind:
    """What a variable is for."""
    if variable._spec.is_slot:
        return "optimizer"
    return "parameters" if variable.trainable else "other_state"


def bytes_on_device(array: Any) -> int:
    """The bytes of an array, or of a `jax.ShapeDtypeStruct`, on one device."""
    sharding: jax.sharding.Sharding | None = getattr(array, "sharding", None)
    shape = array.shape if sharding is None else sharding.shard_shape(array.shape)
    return math.prod(shape) * array.dtype.itemsize


def stored_bytes(variable: Variable) -> int:
    """The bytes of a variable's stored array on one device."""
    return bytes_on_device(variable._store.arrays[variable._place])


def variables_in(store: Store) -> list[Variable]:
    """All variables of a store. Slow: for error messages."""
    return [x for x in gc.get_objects() if type(x) is Variable and x._store is store]
