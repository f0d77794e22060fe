"""Pairing gradients with variables, by their paths in two structures or as a list of pairs.

JAX sorts the keys of dicts, so pairing by position could give a variable another variable's gradient.
Structures are therefore paired by path. `Parameters` remembers the structure, so that optax sees it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.contexts import StrategyProtocol
from replicax.errors import ContextError, VariableError
from replicax.training._pytrees import as_variable, flatten_variables, path_name, repeated_names
from replicax.values import IndexedSlices, Leaf, PerReplica, is_number
from replicax.variables import Variable

__all__ = ["Parameters", "pair"]


@final
@dataclasses.dataclass(frozen=True)
class Parameters:
    """Variables and the structure that they form."""

    variables: list[Variable]
    paths: list[tuple[Any, ...]]
    """The path of each variable in the structure."""
    structure: Any
    """The treedef."""

    @classmethod
    def of(cls, variables: Any, what: str) -> Parameters:
        """Check and flatten `variables` for the method `what`."""
        if isinstance(variables, zip | map | filter):
            variables = list(variables)
        paths, leaves, structure = flatten_variables(variables)
        others = [leaf for leaf in leaves if not isinstance(leaf, Variable)]
        if others or not leaves:
            found = f"{others[0]!r} in it" if others else repr(variables)
            raise VariableError(
                f"Optimizer.{what} takes variables: one, or a structure of them such as a list or a dict. "
                f"Got {found}. `rx.create_variables(arrays)` makes variables from arrays."
            )
        _check_distinct(leaves)
        return cls(leaves, paths, structure)

    @classmethod
    def listed(cls, variables: Sequence[Variable]) -> Parameters:
        """The structure of a list of pairs: a list."""
        return cls.of(list(variables), "apply_gradients")

    @property
    def strategy(self) -> StrategyProtocol:
        """The strategy that created the variables."""
        strategies = {id(v.distribute_strategy): v.distribute_strategy for v in self.variables}
        if len(strategies) > 1:
            raise ContextError(
                f"The variables of one optimizer were created by several strategies: "
                f"{', '.join(map(repr, strategies.values()))}. Create all of them in one scope."
            )
        return self.variables[0].distribute_strategy

    def check_updatable(self) -> None:
        """Raise unless all variables can be updated by gradients."""
        for variable in self.variables:
            if not jnp.issubdtype(variable.dtype, jnp.inexact):
                raise VariableError(
                    f"The variable {variable.name!r} has dtype {variable.dtype}, which has no gradients. "
                    "Leave it out of the optimizer's variables."
                )
            if variable.layout.differs:
                raise VariableError(
                    f"The variable {variable.name!r} has synchronization ON_READ: each replica has its own "
                    "part, so an optimizer can't update it. Create it without `synchronization`."
                )

    def ordered(self, gradients: Sequence[Any], variables: Sequence[Variable]) -> list[Any]:
        """The gradients of `variables` in the order of this structure's leaves."""
        by_variable = {v.ref(): g for v, g in zip(variables, gradients, strict=True)}
        return [by_variable[variable.ref()] for variable in self.variables]

    @property
    def description(self) -> str:
        """The structure in a few words, for messages."""
        if jax.tree_util.treedef_is_leaf(self.structure):
            return "a single array"
        node = self.structure.node_data()
        kind = "structure" if node is None else node[0].__name__
        return f"a {kind} of {len(self.variables)} arrays"


def pair(grads_and_vars: Any, variables: Any) -> tuple[list[Any], Parameters]:
    """Gradients and the variables that they belong to.

    Args:
        grads_and_vars: pairs of gradient and variable, or, with `variables`, a structure of gradients.
        variables: the matching structure of variables; None for pairs.
    """
    if variables is None:
        gradients, parameters = _from_pairs(grads_and_vars)
    else:
        gradients, parameters = _from_structures(grads_and_vars, variables)
    missing = [v.name for g, v in zip(gradients, parameters.variables, strict=True) if g is None]
    if missing:
        raise VariableError(
            f"The gradients of {', '.join(missing)} are None: the loss does not depend on these variables. "
            "Leave them out of the optimizer, or pass zeros to update them by decay and momentum alone."
        )
    _check_shapes(gradients, parameters, by_path=variables is not None)
    return gradients, parameters


def _from_pairs(grads_and_vars: Any) -> tuple[list[Any], Parameters]:
    if isinstance(grads_and_vars, Mapping | Leaf) or not isinstance(grads_and_vars, Iterable):
        raise VariableError(
            f"apply_gradients got a {type(grads_and_vars).__name__} and no variables. Write "
            "`optimizer.apply_gradients(gradients, variables)` with two structures that match, or pass "
            "pairs: zip(gradients, variables)."
        )
    pairs = [_as_pair(pair) for pair in grads_and_vars]
    if not pairs:
        raise VariableError("apply_gradients got no gradients. Pass pairs: zip(gradients, variables).")
    gradients, variables = zip(*pairs, strict=True)
    return list(gradients), Parameters.listed(variables)


def _as_pair(pair: Any) -> tuple[Any, Variable]:
    if isinstance(pair, tuple | list) and len(pair) == 2:
        gradient, variable = pair[0], as_variable(pair[1])
        if isinstance(variable, Variable):
            return gradient, variable
    raise VariableError(
        f"apply_gradients takes pairs (gradient, variable), got {pair!r}. Write zip(gradients, variables), "
        "in this order, or `optimizer.apply_gradients(gradients, variables)`."
    )


def _from_structures(gradients: Any, variables: Any) -> tuple[list[Any], Parameters]:
    leaves, structure = jax.tree.flatten(gradients, is_leaf=_is_gradient)
    if leaves and all(isinstance(leaf, Variable) for leaf in leaves):
        raise VariableError(
            "apply_gradients(gradients, variables) got variables in place of the gradients. Pass the "
            "gradients first and the variables second."
        )
    parameters = Parameters.of(variables, "apply_gradients")
    if structure == parameters.structure:
        return leaves, parameters
    with_paths = jax.tree_util.tree_leaves_with_path(gradients, is_leaf=_is_gradient)
    found = {path_name(path): leaf for path, leaf in with_paths}
    wanted = [path_name(path) for path in parameters.paths]
    if found.keys() != set(wanted):
        raise VariableError(_mismatch(found.keys() - set(wanted), set(wanted) - found.keys()))
    return [found[name] for name in wanted], parameters


def _is_gradient(value: Any) -> bool:
    return value is None or isinstance(value, IndexedSlices | Leaf)


def _mismatch(without_variable: set[str], without_gradient: set[str]) -> str:
    parts = [
        f"There is no {what} for {_some(sorted(paths))}."
        for what, paths in (("gradient", without_gradient), ("variable", without_variable))
        if paths
    ]
    return (
        f"apply_gradients(gradients, variables) pairs by path. {' '.join(parts)} Pass gradients in the "
        "structure of the variables, as `rx.value_and_grad(loss_fn, variables)` returns them."
    )


def _some(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name or "the whole structure" for name in names[:most]) + more


def _check_distinct(variables: Sequence[Variable]) -> None:
    repeated = repeated_names(variables)
    if repeated:
        raise VariableError(
            f"An optimizer got {', '.join(repeated)} more than once. Pass each variable once, with the sum "
            "of its gradients."
        )


def _check_shapes(gradients: list[Any], parameters: Parameters, *, by_path: bool) -> None:
    wrong = []
    for gradient, variable, path in zip(gradients, parameters.variables, parameters.paths, strict=True):
        problem = _shape_problem(gradient, variable)
        if problem is not None:
            place = f" (at {path_name(path)})" if by_path and path else ""
            wrong.append(f"The gradient of {variable.name!r}{place} has {problem}.")
    if not wrong:
        return
    advice = (
        "A gradient has the shape of its variable: differentiate with respect to these variables, "
        "`rx.value_and_grad(loss_fn, variables)`."
        if by_path
        else "If gradients and variables come from dicts, note that JAX sorts the keys. Pair them by path: "
        "`optimizer.apply_gradients(gradients, variables)` with the two dicts."
    )
    more = f"\n... and {len(wrong) - 8} more." if len(wrong) > 8 else ""
    raise VariableError("\n".join(wrong[:8]) + f"{more}\n{advice}")


def _shape_problem(gradient: Any, variable: Variable) -> str | None:
    """What is wrong with the shape of a gradient; None if it is right or unknown."""
    if isinstance(gradient, IndexedSlices):
        width = tuple(gradient.values.shape[1:]) if hasattr(gradient.values, "shape") else None
        fits = width is None or width == variable.shape[1:]
        return None if fits else f"rows of shape {width}, not {variable.shape[1:]}"
    shape = _shape(gradient)
    return None if shape is None or shape == variable.shape else f"shape {shape}, not {variable.shape}"


def _shape(gradient: Any) -> tuple[int, ...] | None:
    if isinstance(gradient, PerReplica):
        uniform = gradient.uniform
        return None if uniform is None else tuple(uniform.shape)
    if is_number(gradient) or isinstance(gradient, list | tuple):
        return np.shape(gradient)
    shape = getattr(gradient, "shape", None)
    return None if shape is None else tuple(shape)
