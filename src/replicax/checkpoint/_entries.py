"""What a checkpoint notes of one thing: its kind, what else is needed to bring it back, and its array."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint._content import Content
from replicax.errors import CheckpointError, CheckpointMismatchError
from replicax.types import VariableAggregation
from replicax.values import is_key, is_number
from replicax.variables import Variable

__all__ = [
    "array_of",
    "assign",
    "check_fit",
    "dtypes_fit",
    "few",
    "kind_of",
    "misfit",
    "packed",
    "unpacked",
]


def packed(path: str, thing: Any) -> tuple[dict[str, Any], np.ndarray | None]:
    """The entry of a thing in the document, and its array if it has one."""
    if isinstance(thing, Variable):
        if _has_no_value(thing):
            raise CheckpointMismatchError(
                f"{path}, the ON_READ variable {thing.name!r}, has aggregation NONE, so its replicas' "
                "parts do not make one value to save. Make it with another aggregation."
            )
        array = np.array(thing.read_value())
        return {"kind": "variable", "name": thing.name, **_shape(array)}, array
    if is_key(thing):
        array = np.array(jax.random.key_data(thing))
        return {"kind": "key", "impl": str(jax.random.key_impl(thing)), **_shape(array)}, array
    if isinstance(thing, bool | int | float):
        return {"kind": "number", "value": thing}, None
    if is_number(thing):
        array = np.array(thing)
        kind = {"kind": "array", "jax": isinstance(thing, jax.Array)}
        if not isinstance(thing, jax.Array | np.ndarray):
            kind["scalar"] = True
        return {**kind, **_shape(array)}, array
    original = thing.state()
    try:
        state = json.loads(json.dumps(original))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"The state of {path} can't be written as JSON: {error}.") from error
    if state != original:
        raise CheckpointError(
            f"The state of {path} would not come back from JSON as it is: {original!r}. Use lists instead "
            "of tuples, and strings as keys."
        )
    return {"kind": "state", "type": type(thing).__name__, "state": state}, None


def _has_no_value(variable: Variable) -> bool:
    none = variable.aggregation is VariableAggregation.NONE
    return none and variable.layout.differs


def _shape(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype)}


def array_of(entry: Mapping[str, Any], path: str, content: Content) -> np.ndarray:
    """The array of an entry; one without elements is not stored."""
    if path in content.arrays:
        return content.arrays[path]
    return np.zeros(entry["shape"], jnp.dtype(entry["dtype"]))


def unpacked(entry: Mapping[str, Any], path: str, content: Content) -> Any:
    """The array, key or number of an entry."""
    if entry["kind"] == "number":
        return entry["value"]
    array = array_of(entry, path, content)
    if entry["kind"] == "key":
        return jax.random.wrap_key_data(jnp.asarray(array), impl=entry["impl"])
    if entry.get("scalar"):
        return array[()]
    return jnp.asarray(array) if entry["jax"] else array


def kind_of(thing: Any) -> str:
    """The kind of a thing's entry."""
    if isinstance(thing, Variable):
        return "variable"
    if is_number(thing):
        if is_key(thing):
            return "key"
        return "number" if isinstance(thing, bool | int | float) else "array"
    return "state"


def check_fit(things: Mapping[str, Any], saved: Mapping[str, Any], where: str) -> None:
    """Raise unless everything that is both here and there fits."""
    both = [path for path in things if path in saved]
    found = [(path, misfit(things[path], saved[path])) for path in both]
    problems = [f"{path} {problem}" for path, problem in found if problem is not None]
    if not problems and things and not set(things) & set(saved):
        listing = f"here are {few(list(things))}, there {few(list(saved))}"
        problems.append(f"the checkpoint is of other objects: {listing}")
    if problems:
        raise CheckpointMismatchError(
            f"The checkpoint {where} does not fit: {'; '.join(problems)}. Nothing was restored."
        )


def misfit(thing: Any, entry: Mapping[str, Any]) -> str | None:
    """Why a thing can't have the state that was saved; None if it can."""
    kind = kind_of(thing)
    if kind != entry["kind"]:
        return f"is {_a(kind)} here and {_a(entry['kind'])} there"
    if kind == "variable" and list(thing.shape) != entry["shape"]:
        return f"has shape {thing.shape} here and {tuple(entry['shape'])} there"
    if kind == "variable" and not dtypes_fit(thing.dtype, entry["dtype"]):
        return f"has dtype {thing.dtype} here and {entry['dtype']} there"
    return None


def dtypes_fit(here: Any, there: str) -> bool:
    """Whether values can be restored: the same dtype, or both of floating-point numbers."""
    both = np.dtype(here), jnp.dtype(there)
    if both[0] == both[1]:
        return True
    here_complex, there_complex = (jnp.issubdtype(dtype, jnp.complexfloating) for dtype in both)
    loses = there_complex and not here_complex
    return not loses and all(jnp.issubdtype(dtype, jnp.inexact) for dtype in both)


def assign(variable: Variable, value: np.ndarray) -> None:
    """Give a variable a saved value."""
    if _has_no_value(variable):  # every replica's part is the value
        variable.distribute_strategy.run(lambda: variable.assign(value, read_value=False))
    else:
        variable.assign(value, read_value=False)


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def few(names: list[str]) -> str:
    """Names for a message, of which there may be many."""
    shown = ", ".join(names[:6])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 6 else shown or "none"
