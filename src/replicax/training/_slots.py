"""The state of an optax transformation as variables: initial values and names.

A slot that belongs to one parameter is named after that parameter's variable, wherever it is in optax's
state. So the names are the same whether optax sees a list or a dict, and checkpoints match both.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import jax

from replicax._jax import is_tracer
from replicax.errors import VariableError
from replicax.topology import is_key
from replicax.training._pairs import Parameters
from replicax.variables import TracedValue, Variable, traced_results

__all__ = [
    "checkpoint_key",
    "initial_state",
    "initial_values",
    "slot_names",
    "slot_owners",
    "slot_partition",
]


def initial_state(transformation: Any, parameters: Parameters, values: list[Any]) -> tuple[list[Any], Any]:
    """The leaves of optax's initial state, each with its path, and the treedef."""

    def init(values: list[Any]) -> Any:
        return transformation.init(parameters.structure.unflatten(values))

    leaves, structure = jax.tree_util.tree_flatten_with_path(initial_values(init, values))
    if any(is_key(leaf) for _, leaf in leaves):
        raise VariableError(
            f"The state of {transformation!r} contains random keys, which variables can't hold. Leave that "
            "transformation out, and add noise to the gradients yourself."
        )
    return leaves, structure


def initial_values(init: Any, values: list[Any]) -> Any:
    """What `init(values)` returns, with a program in place of each array, to create variables from.

    So each device computes its own shard of a variable, even if a step is being traced. Arrays that depend
    on values of that trace are tracers.
    """
    programs = _programs_of(init, values)
    return init(values) if any(map(_holds_tracers, jax.tree.leaves(programs))) else programs


def _programs_of(init: Any, values: list[Any]) -> Any:
    """What `init(values)` returns, with a program in place of each array that has to be computed."""
    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]
    program, state = jax.make_jaxpr(init, return_shape=True)(shapes)
    return jax.tree.unflatten(jax.tree.structure(state), traced_results(program, values))


def _holds_tracers(value: Any) -> bool:
    return any(map(is_tracer, value.args if isinstance(value, TracedValue) else [value]))


def slot_names(paths: Sequence[Any], parameters: Parameters) -> list[str]:
    """A name for each slot, made from its path in optax's state and unique in a checkpoint."""
    names = _distinct([variable.name.removesuffix(":0") for variable in parameters.variables])
    own = {
        tuple(map(_token, path)): name for path, name in zip(parameters.paths, names, strict=True) if path
    }
    depths = sorted({len(path) for path in own}, reverse=True)
    return _distinct([_slot_name(tuple(map(_token, path)), own, depths) for path in paths])


def slot_partition(slot: Any, owner: Variable | None) -> tuple[int, ...] | None:
    """The partition of a slot: its variable's, if both have the same shape."""
    return None if owner is None or getattr(slot, "shape", ()) != owner.shape else owner.partition


def slot_owners(state: Sequence[tuple[Any, Any]], parameters: Parameters) -> list[Variable | None]:
    """The variable that each slot belongs to; None for state that all variables share."""
    variables = parameters.variables
    own = {tuple(map(_token, p)): v for p, v in zip(parameters.paths, variables, strict=True)}
    if () in own:  # a single variable, without a structure: a slot of its shape is its own
        return [own[()] if getattr(leaf, "shape", ()) == own[()].shape else None for _, leaf in state]
    depths = sorted({len(path) for path in own}, reverse=True)
    ends = [_own_end(tuple(map(_token, path)), own, depths) for path, _ in state]
    return [None if end is None else own[end] for end in ends]


def _own_end(path: tuple[str, ...], own: Container[tuple[str, ...]], depths: list[int]) -> Any:
    """The suffix of a slot's path that is the path of a variable; None if there is none."""
    ends = (path[-depth:] for depth in depths if len(path) > depth)
    return next((end for end in ends if end in own), None)


def _slot_name(path: tuple[str, ...], own: dict[tuple[str, ...], str], depths: list[int]) -> str:
    """A slot's path as a name, with a suffix that is the path of a variable replaced by its name."""
    name: tuple[str, ...] = ()
    end = _own_end(path, own, depths)
    if end is not None:
        path, name = path[: -len(end)], (own[end],)
    return "/".join((*(part.removeprefix(".") for part in path), *name)) or "state"


def _token(key: Any) -> str:
    """One key of a path as text; a field, unlike a key of a dict or list, begins with a dot."""
    if hasattr(key, "name"):
        return f".{key.name}"
    return str(getattr(key, "idx", getattr(key, "key", key)))


def _distinct(names: Sequence[str]) -> list[str]:
    """`names`, with a number appended where a checkpoint could not tell one from an earlier one."""
    found: list[str] = []
    taken: set[str] = set()
    for original in names:
        name = original
        if checkpoint_key(name) in taken:
            number = sum(other == name or other.startswith(f"{name}_") for other in found) or 1
            while checkpoint_key(name) in taken:
                name, number = f"{original}_{number}", number + 1
        found.append(name)
        taken.add(checkpoint_key(name))
    return found


def checkpoint_key(slot_name: str) -> str:
    """A slot's name as one part of a path in a checkpoint, where '/' separates the parts."""
    return slot_name.replace("/", ".")
