"""Structures of variables: creating them from arrays, reading them as arrays, and flattening them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, overload

import jax
import numpy as np

from replicax.contexts import current
from replicax.types import AggregationLike, Untyped, VariableAggregation
from replicax.values import is_number
from replicax.variables import Variable

__all__ = [
    "as_variable",
    "create_variables",
    "flatten_variables",
    "ordered_like",
    "path_name",
    "read_values",
    "repeated_names",
]


_Array = TypeVar("_Array", bound=jax.Array | np.ndarray | float | complex)
_Key = TypeVar("_Key")
_Structure = TypeVar("_Structure")


@overload
def create_variables(
    arrays: Untyped,
    *,
    trainable: bool = ...,
    aggregation: AggregationLike = ...,
    name: str | None = ...,
) -> Any: ...
@overload
def create_variables(
    arrays: jax.Array | np.ndarray | float | complex,
    *,
    trainable: bool = ...,
    aggregation: AggregationLike = ...,
    name: str | None = ...,
) -> Variable: ...
@overload
def create_variables(
    arrays: dict[_Key, _Array],
    *,
    trainable: bool = ...,
    aggregation: AggregationLike = ...,
    name: str | None = ...,
) -> dict[_Key, Variable]: ...
@overload
def create_variables(
    arrays: Any,
    *,
    trainable: bool = ...,
    aggregation: AggregationLike = ...,
    name: str | None = ...,
) -> Any: ...
def create_variables(
    arrays: Any,
    *,
    trainable: bool = True,
    aggregation: AggregationLike = VariableAggregation.NONE,
    name: str | None = None,
) -> Any:
    """Create a variable for each array of a structure, with the strategy in scope.

    A model that is a pure function (plain JAX, Flax linen, Equinox) needs no rewriting: its parameters
    become variables, and `rx.read_values` returns their arrays.

    Args:
        arrays: a structure of arrays; leaves that are not arrays or numbers are kept unchanged.
        trainable: whether optimizers should update the variables.
        aggregation: how replicas' writes are combined; see `rx.Variable`.
        name: the prefix of the variables' names, which are their paths in the structure.

    >>> params = rx.create_variables({"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}})
    >>> params["dense"]["kernel"].name
    'dense/kernel:0'
    >>> def model(params, x):
    ...     return x @ params["dense"]["kernel"] + params["dense"]["bias"]
    >>> def loss(x):
    ...     return jnp.sum(model(rx.read_values(params), x))
    >>> value, grads = rx.value_and_grad(loss, params)(jnp.ones((1, 2)))
    >>> grads["dense"]["bias"]
    Array([1., 1., 1.], dtype=float32)
    """
    make_variable = current().strategy.create_variable

    def make(path: Any, leaf: Any) -> Any:
        if not is_number(leaf):
            return leaf
        full = "/".join(part for part in (name, path_name(path)) if part) or "Variable"
        return make_variable(leaf, name=full, trainable=trainable, aggregation=aggregation)

    return jax.tree_util.tree_map_with_path(make, arrays)


def path_name(path: Any) -> str:
    """A path in a structure as a name: 'dense/kernel', 'layers/0/bias'."""
    return "/".join(map(_entry, path))


def _entry(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def flatten_variables(structure: Any) -> tuple[list[tuple[Any, ...]], list[Any], Any]:
    """The paths and leaves of a structure of variables, and its treedef.

    Variables of other libraries (Keras) are replaced by ours. Any other leaf is left to the caller.
    """
    found, treedef = jax.tree_util.tree_flatten_with_path(
        structure, is_leaf=lambda x: isinstance(x, Variable)
    )
    return [path for path, _ in found], [as_variable(leaf) for _, leaf in found], treedef


def as_variable(thing: Any) -> Any:
    """Our variable behind another library's variable (`thing.replicax_variable`); else `thing` itself."""
    return thing if isinstance(thing, Variable) else getattr(thing, "replicax_variable", thing)


def repeated_names(variables: Iterable[Variable]) -> list[str]:
    """The names of variables that occur more than once."""
    seen, repeated = set(), []
    for variable in variables:
        if variable.ref() in seen:
            repeated.append(variable.name)
        seen.add(variable.ref())
    return repeated


def ordered_like(like: Any, structure: Any) -> Any:
    """`structure` with the keys of its dicts, which JAX has sorted, in the order that `like` has."""
    if jax.tree_util.all_leaves([like]) or isinstance(as_variable(like), Variable):
        return structure
    if isinstance(like, dict):
        ordered = {key: ordered_like(part, structure[key]) for key, part in like.items()}
        if type(like) is dict:
            return ordered
        structure.clear()  # a defaultdict, for example, that JAX has just created
        structure.update(ordered)
        return structure
    parts, treedef = jax.tree.flatten(like, is_leaf=lambda part: part is not like)
    return treedef.unflatten(map(ordered_like, parts, treedef.flatten_up_to(structure)))


@overload
def read_values(structure: Untyped) -> Any: ...
@overload
def read_values(structure: Variable) -> jax.Array: ...
@overload
def read_values(structure: _Structure) -> _Structure: ...
def read_values(structure: Any) -> Any:
    """`structure` with each variable replaced by its value; in a replica function, by the replica's copy.

    >>> rx.read_values([rx.Variable(1.0), {"b": rx.Variable([2.0])}])
    [Array(1., dtype=float32), {'b': Array([2.], dtype=float32)}]
    """

    def is_variable(x: Any) -> bool:
        return isinstance(x, Variable)

    def value(x: Any) -> Any:
        variable = as_variable(x)
        return variable.read_value() if is_variable(variable) else x

    return jax.tree.map(value, structure, is_leaf=is_variable)
