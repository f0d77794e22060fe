"""What a variable and a copy of one have in common: a value, which JAX sees."""

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
    """Register a class with `jax.tree`, which sees the value in place of the object."""
    jax.tree_util.register_pytree_node(
        cls, lambda readable: ((readable.read_value(),), None), lambda _, children: children[0]
    )
    return cls


class Readable(ArrayOperators, Leaf, abc.ABC):
    """What a variable and one of its copies have in common: a value.

    JAX sees the value: given to `jnp.sum`, `jax.jit` or `jax.grad`, alone or in a structure, a variable
    is the array that it holds here.
    """

    __slots__ = ()

    @abc.abstractmethod
    def read_value(self) -> jax.Array:
        """The value, as an array."""

    @abc.abstractmethod
    def held(self) -> Any:
        """What each replica holds of it, as the form that reductions take."""

    @property
    def value(self) -> jax.Array:
        """The value, as an array; the same as `read_value()`. Write it with `assign`."""
        return self.read_value()

    @value.setter
    def value(self, value: Never) -> None:
        raise AttributeError("`v.value = x` does not write a variable. Use `v.assign(x)`.")

    def __setitem__(self, index: Any, value: Never) -> None:
        raise TypeError(
            "`v[index] = x` does not write a variable. Use `v.assign(v.value.at[index].set(x))`, or "
            "`v.scatter_update(...)` for rows."
        )

    def numpy(self) -> np.ndarray:
        """The value, as a NumPy array of its own."""
        return np.array(self.read_value())

    def __jax_array__(self) -> jax.Array:
        return self.read_value()


def describe(name: str, readable: Any) -> str:
    """One line about a variable or a copy of one."""
    text = f"<rx.Variable {name!r} shape={readable.shape} dtype={readable.dtype}"
    try:
        value = readable.read_value()
    except Exception as error:  # a repr must not raise, whatever the state of the program
        return f"{text}, unreadable here: {type(error).__name__}>"
    if is_tracer(value):
        return f"{text}, traced>"
    array = np.asarray(value)
    return f"{text}, numpy={array.item() if array.ndim == 0 else repr(array)}>"


def is_variable(value: Any) -> bool:
    """Whether `value` is a variable, or a replica's copy of one; `jax.tree` would take its value."""
    return isinstance(value, Readable)
