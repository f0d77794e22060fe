"""The methods that write a variable, and how each one computes the new value."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax.numpy as jnp
import numpy as np

__all__ = [
    "ADD",
    "METHODS",
    "REPLACE",
    "SCATTER",
    "SCATTER_ND",
    "SUBTRACT",
    "SUMMABLE_SCATTER",
    "Method",
    "Write",
    "sliced",
]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A way to write a variable, such as `assign_add`."""

    name: str
    apply: Callable[[Any, Any], Any]
    """Computes the new value from the old one and the operand."""
    is_sliced: bool = False
    """Whether the operand is for a slice of the variable."""


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
        """The new value for `old`; `operand` is the matching part of this write's operand."""
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
SUMMABLE_SCATTER = (
    *("scatter_add", "scatter_sub", "scatter_mul", "scatter_div"),
    *("scatter_nd_add", "scatter_nd_sub"),
)


def _scatter_nd(method: str) -> Callable[[Any, Any], Any]:
    def apply(old: Any, places: Any) -> Any:
        axes = jnp.moveaxis(jnp.asarray(places.indices), -1, 0)
        return getattr(old.at[tuple(axes)], method)(places.values)

    return apply


SCATTER_ND = {
    name: Method(name, _scatter_nd(method))
    for name, method in {
        "scatter_nd_add": "add",
        "scatter_nd_sub": "subtract",
        "scatter_nd_min": "min",
        "scatter_nd_max": "max",
        "scatter_nd_update": "set",
    }.items()
}

METHODS = {
    method.name: method for method in (REPLACE, ADD, SUBTRACT, *SCATTER.values(), *SCATTER_ND.values())
}
"""All methods by name. Processes refer to a method by its name."""


def sliced(method: str, index: Any) -> Method:
    """`assign`, `assign_add` or `assign_sub` of the part of a variable at `index`."""
    return _sliced(method, tuple(map(_hashable, index)) if isinstance(index, tuple) else _hashable(index))


@functools.lru_cache(maxsize=1024)
def _sliced(method: str, index: Any) -> Method:
    """Cached, so that equal slices give the same object and the replicas' writes can be compared."""
    place = tuple(map(_index, index)) if isinstance(index, tuple) else _index(index)
    update = {"assign": "set", "assign_add": "add", "assign_sub": "subtract"}[method]
    return Method(
        f"{method} of a slice", lambda old, new: getattr(old.at[place], update)(new), is_sliced=True
    )


@dataclasses.dataclass(frozen=True)
class _Bounds:
    """A hashable slice; Python's own are hashable only since 3.12."""

    start: int | None
    stop: int | None
    step: int | None


def _hashable(part: Any) -> Any:
    if isinstance(part, slice):
        return _Bounds(*(None if n is None else int(n) for n in (part.start, part.stop, part.step)))
    if part is None or part is Ellipsis:
        return part
    try:
        return int(part)
    except TypeError as error:
        raise TypeError(
            f"v.slice_at(index) takes integers and slices of integers, got {part!r}. For several rows use "
            "v.scatter_update(...), for single elements v.scatter_nd_update(...)."
        ) from error


def _index(part: Any) -> Any:
    return slice(part.start, part.stop, part.step) if isinstance(part, _Bounds) else part
