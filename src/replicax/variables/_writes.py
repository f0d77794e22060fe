"""The methods that write a variable: how each computes the new value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax.numpy as jnp
import numpy as np

__all__ = ["ADD", "METHODS", "REPLACE", "SCATTER", "SUBTRACT", "SUMMABLE_SCATTER", "Method", "Write"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A way to write a variable, such as `assign_add`."""

    name: str
    apply: Callable[[Any, Any], Any]
    """Computes the new value from the old one and the operand."""


class Write(NamedTuple):
    """One call of a method."""

    method: Method
    operand: Any

    @property
    def name(self) -> str:
        """The name of the method, for messages."""
        return self.method.name

    @property
    def replaces(self) -> bool:
        """Whether the new value does not depend on the old one."""
        return self.method is REPLACE

    def applied_to(self, old: Any, operand: Any) -> Any:
        """The new value; `operand` is the part of this write's operand that belongs to `old`."""
        return self.method.apply(old, operand)


def _replace(old: Any, new: Any) -> Any:
    return jnp.broadcast_to(new, old.shape) if np.shape(new) != old.shape else new


REPLACE = Method("assign", _replace)
ADD = Method("assign_add", lambda old, new: old + new)
SUBTRACT = Method("assign_sub", lambda old, new: old - new)


def _scatter(method: str) -> Callable[[Any, Any], Any]:
    def apply(old: Any, rows: Any) -> Any:
        return getattr(old.at[jnp.asarray(rows.indices)], method)(rows.values)

    return apply


SCATTER = {
    name: Method(name, _scatter(method))
    for name, method in {
        "scatter_add": "add",
        "scatter_sub": "subtract",
        "scatter_mul": "multiply",
        "scatter_div": "divide",
        "scatter_min": "min",
        "scatter_max": "max",
        "scatter_update": "set",
    }.items()
}
SUMMABLE_SCATTER = ("scatter_add", "scatter_sub", "scatter_mul", "scatter_div")

METHODS = {method.name: method for method in (REPLACE, ADD, SUBTRACT, *SCATTER.values())}
"""All methods by name, under which another process finds them."""
