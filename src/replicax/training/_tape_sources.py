"""The arguments of a `GradientTape`: structures of arrays and variables, and gradients of targets."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import VariableError
from replicax.training._pytrees import as_variable, ordered_like
from replicax.values import DistributedValues, IndexedSlices
from replicax.variables import Variable, VariableCopy

__all__ = ["flatten_sources", "flatten_targets", "is_differentiable", "name_of"]


def is_differentiable(value: Any) -> bool:
    """Whether an array or a variable has a dtype with gradients."""
    return jnp.issubdtype(value.dtype, jnp.inexact)


def name_of(value: Any) -> str:
    """A name for messages."""
    if isinstance(value, jax.Array):
        return f"an array of shape {value.shape}"
    return f"the variable {value.name!r}"


def flatten_sources(
    sources: Any, method: str, known: Container[int] = ()
) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The arrays and variables in `sources`, and a function that rebuilds the structure from other leaves.

    Keras variables are replaced by our variables that back them, unless their `id` is in `known`.
    """
    leaves, treedef = jax.tree.flatten(sources, is_leaf=_is_leaf)
    found = [leaf if id(leaf) in known else _checked(leaf, method) for leaf in leaves]
    return found, lambda results: ordered_like(sources, treedef.unflatten(results))


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Variable | VariableCopy | DistributedValues | IndexedSlices)


def _checked(leaf: Any, method: str) -> Any:
    variable = as_variable(leaf)
    if isinstance(variable, Variable | jax.Array) or _is_foreign_variable(variable):
        return variable
    if isinstance(leaf, VariableCopy):
        return leaf.container
    if isinstance(leaf, DistributedValues):
        raise VariableError(
            f"GradientTape.{method}() got a {type(leaf).__name__}, which has a value for each replica. Use "
            "the tape in a replica function, where each replica has its own value."
        )
    raise TypeError(
        f"GradientTape.{method}() takes arrays and variables, got {leaf!r} of type {type(leaf).__name__}. "
        "Make it an array before the block, `x = jnp.asarray(x)`, and compute with that."
    )


def _is_foreign_variable(value: Any) -> bool:
    """Whether it is a Keras variable that was created without a strategy."""
    return hasattr(type(value), "trainable") and hasattr(type(value), "assign")


def flatten_targets(target: Any, output_gradients: Any) -> list[tuple[Any, Any]]:
    """Each array of the target with its given gradient, or None."""
    targets, treedef = jax.tree.flatten(target, is_leaf=_is_leaf)
    if output_gradients is None:
        return [(value, None) for value in targets]
    given = jax.tree.leaves(output_gradients, is_leaf=lambda x: x is None)
    if len(given) != len(targets):
        raise ValueError(
            f"GradientTape.gradient(output_gradients=...) got {len(given)} gradients for a target of "
            f"{len(targets)} arrays, {treedef}. Pass a gradient or None for each of them."
        )
    for value, gradient in zip(targets, given, strict=True):
        if gradient is not None and np.shape(gradient) != np.shape(value):
            raise ValueError(
                f"GradientTape.gradient(output_gradients=...) got a gradient of shape {np.shape(gradient)} "
                f"for a target of shape {np.shape(value)}. The shapes must be equal."
            )
    return list(zip(targets, given, strict=True))
