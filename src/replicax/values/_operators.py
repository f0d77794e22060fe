"""Python's operators for classes that wrap arrays.

`ArrayOperators` makes a class compute like the array that its `__jax_array__` returns (variables,
`Mirrored`). `operators_of_only` makes the same operators raise an error that explains what to do instead
(`PerReplica`), unless this process has only one of the values.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import ArrayImpl
from replicax.errors import PerReplicaUseError

__all__ = ["ArrayOperators", "operators_of_only"]

_Class = TypeVar("_Class", bound=type)

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "matmul": operator.matmul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": operator.abs,
    "invert": operator.invert,
    "float": float,
    "int": int,
    "bool": bool,
    "complex": complex,
    "index": operator.index,
    "len": len,
    "iter": iter,
}


def _array(value: Any) -> Any:
    if isinstance(value, jax.Array) or not hasattr(type(value), "__jax_array__"):
        return value
    return value.__jax_array__()


def _format(self: Any, spec: str) -> str:
    return format(_array(self), spec) if spec else str(self)


def _forward_attribute(self: Any, name: str) -> Any:
    cls = type(self)
    if hasattr(cls, name):  # a property that raised: raise its own error again
        return object.__getattribute__(self, name)
    if name.startswith("_") or not hasattr(ArrayImpl, name):
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}.")
    return getattr(_array(self), name)


def _forward_operators(cls: _Class) -> _Class:
    """Class decorator: compute with the array that `__jax_array__` returns."""
    for name, op in (_BINARY | _COMPARE).items():
        setattr(cls, f"__{name}__", lambda self, other, op=op: op(_array(self), _array(other)))
    for name, op in _BINARY.items():
        setattr(cls, f"__r{name}__", lambda self, other, op=op: op(_array(other), _array(self)))
    for name, op in _UNARY.items():
        setattr(cls, f"__{name}__", lambda self, op=op: op(_array(self)))
    cls.__getitem__ = lambda self, index: _array(self)[index]
    cls.__array__ = lambda self, dtype=None, copy=None: np.array(_array(self), dtype=dtype)
    setattr(cls, "__format__", _format)  # noqa: B010
    setattr(cls, "__hash__", None)  # noqa: B010 - equality is element by element, as for arrays
    setattr(cls, "__getattr__", _forward_attribute)  # noqa: B010
    return cls


if TYPE_CHECKING:
    # JAX's functions are annotated with `ArrayLike`, a closed union, so `jnp.sum(v)` type-checks only for a
    # subclass of `jax.Array`. At run time `__jax_array__` is what counts.
    class ArrayOperators(jax.Array):
        """Computes like the array that `__jax_array__` returns: operators, indexing, array methods."""

        __slots__ = ()

        # Without it, type checkers would compare a subclass's arguments with those of `jax.Array`.
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def __jax_array__(self) -> jax.Array: ...

else:

    @_forward_operators
    class ArrayOperators:
        """Computes like the array that `__jax_array__` returns: operators, indexing, array methods."""

        __slots__ = ()

        # NumPy must leave the arithmetic to this class: `np.float32(1) * v`.
        __array_priority__ = 100


def operators_of_only(cls: _Class) -> _Class:
    """Class decorator: compute with `cls.only`, this process's only value, or raise.

    A per-replica value is not one number. But with one replica in this process, and others elsewhere, it
    behaves like that replica's value, as in TensorFlow.
    """
    why = (
        f"A {cls.__name__} holds one value for each replica, so it can't be used as a single array or "
        "number here. Combine it with `strategy.reduce(op, value, axis=...)` or `strategy.gather(value, "
        "axis=...)`, look at its parts with `strategy.local_results(value)`, or compute with it inside "
        "`strategy.run(fn, args=(value,))`."
    )

    def only(self: Any) -> Any:
        found = self.only
        if found is None:
            raise PerReplicaUseError(why)
        return found

    def attribute(self: Any, name: str) -> Any:
        if hasattr(cls, name):  # a property that raised: raise its own error again
            return object.__getattribute__(self, name)
        of_arrays = name == "numpy" or (not name.startswith("_") and hasattr(ArrayImpl, name))
        if of_arrays and self.only is not None:
            return functools.partial(np.asarray, self.only) if name == "numpy" else getattr(self.only, name)
        reason = f" {why}" if of_arrays else ""
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}.{reason}")

    def array(self: Any, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(only(self), dtype=dtype)

    forwarded = {name: op for name, op in (_BINARY | _COMPARE).items() if name not in ("eq", "ne")}
    for name, op in forwarded.items():
        setattr(cls, f"__{name}__", lambda self, other, op=op: op(only(self), _only_of(other)))
    for name, op in _BINARY.items():
        setattr(cls, f"__r{name}__", lambda self, other, op=op: op(_only_of(other), only(self)))
    for name, op in _UNARY.items():
        setattr(cls, f"__{name}__", lambda self, op=op: op(only(self)))
    cls.__getitem__ = lambda self, index: only(self)[index]
    cls.__array__ = array
    cls.__jax_array__ = lambda self: jnp.asarray(only(self))
    cls.__getattr__ = attribute
    setattr(cls, "__format__", lambda self, spec: format(only(self), spec) if spec else str(self))  # noqa: B010
    return cls


def _only_of(value: Any) -> Any:
    found = getattr(type(value), "only", None)
    return value if found is None or value.only is None else value.only
