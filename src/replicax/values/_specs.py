"""Specs: the structure, shapes and dtypes of a dataset's elements and of a function's arguments.

A size that is not known in advance is None: most often the number of examples, since the last batch may be
smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.values._arrays import is_number
from replicax.values._distributed import Leaf
from replicax.values._per_replica import PerReplica

__all__ = ["PerReplicaSpec", "TensorSpec", "check_signature", "converted"]


@final
@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of an array, with None for sizes that are not known in advance.

    Args:
        shape: the sizes.
        dtype: anything that JAX accepts as a dtype.
        name: its name in error messages.

    >>> spec = rx.TensorSpec([None, 3], jnp.float32)
    >>> spec
    TensorSpec(shape=(None, 3), dtype=float32)
    >>> spec.is_compatible_with(jnp.ones((8, 3))), spec.is_compatible_with(jnp.ones(3))
    (True, False)
    """

    shape: Sequence[int | None]
    dtype: Any = jnp.float32
    name: str | None = None

    def __post_init__(self) -> None:
        """Convert the shape to a tuple and the dtype to a `np.dtype`."""
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def __repr__(self) -> str:
        named = "" if self.name is None else f", name={self.name!r}"
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype}{named})"

    def is_compatible_with(self, value: Any) -> bool:
        """Whether `value` is an array or number with this dtype and these sizes, where given."""
        if not is_number(value) and not isinstance(value, jax.ShapeDtypeStruct):
            return False
        shape = tuple(np.shape(value)) if is_number(value) else value.shape
        dtype = jnp.result_type(value) if is_number(value) else value.dtype
        return (
            dtype == jax.dtypes.canonicalize_dtype(self.dtype)
            and len(shape) == len(self.shape)
            and all(want in (None, have) for want, have in zip(self.shape, shape, strict=True))
        )


@final
class PerReplicaSpec(Leaf):
    """The specs of a per-replica value's components.

    `strategy.distribute_dataset(dataset).element_spec` consists of these.

    >>> spec = rx.PerReplicaSpec(rx.TensorSpec([4], jnp.int32), rx.TensorSpec([4], jnp.int32))
    >>> spec.value_specs[0]
    TensorSpec(shape=(4,), dtype=int32)
    """

    __slots__ = ("value_specs",)

    def __init__(self, *value_specs: TensorSpec) -> None:
        """One spec for each replica of this process."""
        self.value_specs = value_specs

    def __repr__(self) -> str:
        return f"PerReplicaSpec({', '.join(map(repr, self.value_specs))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and other.value_specs == self.value_specs

    def __hash__(self) -> int:
        return hash(self.value_specs)

    def is_compatible_with(self, value: Any) -> bool:
        """Whether `value` is a `PerReplica` and each component is compatible with its spec."""
        if not isinstance(value, PerReplica):
            return False
        uniform = value.uniform
        if uniform is not None:
            return all(spec.is_compatible_with(uniform) for spec in self.value_specs)
        components = value.components
        return len(components) == len(self.value_specs) and all(
            spec.is_compatible_with(part) for spec, part in zip(self.value_specs, components, strict=True)
        )


_Spec = TensorSpec | PerReplicaSpec | jax.ShapeDtypeStruct


def _is_spec(value: Any) -> bool:
    return isinstance(value, _Spec)


def converted(signature: Sequence[Any], args: Sequence[Any]) -> Sequence[Any]:
    """`args`, with arrays in place of lists and variables where `signature` names an array."""
    try:
        return jax.tree.map(_converted, tuple(signature), tuple(args), is_leaf=_is_spec)
    except ValueError:
        return args  # a different structure: `check_signature` raises


def _converted(spec: Any, argument: Any) -> Any:
    if not isinstance(spec, TensorSpec | jax.ShapeDtypeStruct) or isinstance(argument, PerReplica):
        return argument
    if isinstance(argument, list | tuple):
        return jnp.asarray(argument, jax.dtypes.canonicalize_dtype(spec.dtype))
    return jnp.asarray(argument) if hasattr(type(argument), "__jax_array__") else argument


def check_signature(signature: Sequence[Any], args: Sequence[Any], what: str) -> None:
    """Raise `TypeError` unless the positional arguments `args` match `signature`."""
    if len(args) != len(signature):
        raise TypeError(
            f"{what} takes {len(signature)} arguments according to its input_signature, got {len(args)}."
        )
    for position, (wanted, argument) in enumerate(zip(signature, args, strict=True)):
        specs, treedef = jax.tree.flatten(wanted, is_leaf=_is_spec)
        try:
            values = treedef.flatten_up_to(argument)
        except ValueError as error:
            raise TypeError(
                f"Argument {position} of {what} does not have the structure of its input_signature "
                f"({wanted}): {error}"
            ) from None
        for spec, value in zip(specs, values, strict=True):
            if not _fits(spec, value):
                raise TypeError(
                    f"Argument {position} of {what} does not match its input_signature: expected {spec}, "
                    f"got {_describe(value)}."
                )


def _fits(spec: Any, value: Any) -> bool:
    if isinstance(spec, jax.ShapeDtypeStruct):
        spec = TensorSpec(spec.shape, spec.dtype)
    if isinstance(spec, TensorSpec | PerReplicaSpec):
        return spec.is_compatible_with(value)
    raise TypeError(
        f"An input_signature consists of rx.TensorSpec, rx.PerReplicaSpec (a distributed dataset's "
        f"element_spec) or jax.ShapeDtypeStruct; got {spec!r}."
    )


def _describe(value: Any) -> str:
    if isinstance(value, PerReplica):
        uniform = value.uniform
        parts = [uniform] if uniform is not None else list(value.components)
        return "a per-replica value of " + ", ".join(map(_describe, parts))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return f"{type(value).__name__} {value!r}"
