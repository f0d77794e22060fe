"""The base of variables and their copies: objects that JAX sees as an array."""

from __future__ import annotations

import abc
from typing import Any, Never, TypeVar

import jax
import numpy as np

from replicax._jax import is_tracer
from replicax.values import ArrayOperators, Leaf

__all__ = ["Readable", "describe", "is_variable", "seen_by_jax"]


_T = TypeVar("_T", bound=type)


def seen_by_jax(cls: _T) -> _T:
    """Register a class as a pytree node with one child: its value."""
    jax.tree_util.register_pytree_node(
        cls, lambda readable: ((readable.read_value(),), None), lambda _, children: children[0]
    )
    return cls


class Readable(ArrayOperators, Leaf, abc.ABC):
    """A variable or one of its copies.

    `jnp.sum`, `jax.jit`, `jax.grad` and other JAX functions see its current value as an array, even inside
    a pytree.
    """

    __slots__ = ()

    @abc.abstractmethod
    def read_value(self) -> jax.Array:
        """The value, as an array."""

    @abc.abstractmethod
    def held(self) -> Any:
        """What each replica holds, as a distributed value that can be reduced."""

    @property
    def value(self) -> jax.Array:
        """The value, as an array; the same as `read_value()`. Write it with `assign`."""
        return self.read_value()

    @value.setter
    def value(self, value: Never) -> None:
        raise AttributeError("`v.value = x` does not write a variable. Use `v.assign(x)`.")

    def __setitem__(self, index: Any, value: Never) -> None:
        raise TypeError(
            "`v[index] = x` does not write a variable. Use `v.slice_at(index).assign(x)`, or "
            "`v.scatter_update(...)` for rows."
        )

    def numpy(self) -> np.ndarray:
        """A copy of the value, as a NumPy array."""
        return np.array(self.read_value())

    def __jax_array__(self) -> jax.Array:
        return self.read_value()


def describe(name: str, readable: Any) -> str:
    """The `repr` of a variable or a copy."""
    text = f"<rx.Variable {name!r} shape={readable.shape} dtype={readable.dtype}"
    try:
        value = readable.read_value()
    except Exception as error:  # a repr must not raise
        return f"{text}, unreadable here: {type(error).__name__}>"
    if is_tracer(value):
        return f"{text}, traced>"
    array = np.asarray(value)
    return f"{text}, numpy={array.item() if array.ndim == 0 else repr(array)}>"


def is_variable(value: Any) -> bool:
    """Whether `value` is a variable or a copy of one, which `jax.tree` would replace with its value."""
    return isinstance(value, Readable)
