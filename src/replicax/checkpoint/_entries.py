"""One thing in a checkpoint: its arrays, and an entry in the document with all else that it needs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint._content import Content
from replicax.checkpoint._parts import (
    cannot_combine,
    has_parts,
    is_combinable,
    read_parts,
    takes_parts,
    write_parts,
)
from replicax.errors import CheckpointError, CheckpointMismatchError
from replicax.values import is_key, is_number
from replicax.variables import Variable

__all__ = [
    "FORMATS",
    "array_of",
    "arrays_of",
    "check_fit",
    "check_overlap",
    "dtypes_fit",
    "few",
    "format_of",
    "kind_of",
    "misfit",
    "one_moment",
    "packed",
    "restore_variable",
    "unpacked",
]


FORMATS = (1, 2)
"""The formats of documents that can be read. In format 2 a variable may have parts alone, and no value."""


def format_of(entries: Mapping[str, Any]) -> int:
    """The oldest format that can express these entries."""
    return 2 if any(entry.get("aggregation") == "NONE" for entry in entries.values()) else 1


def packed(path: str, thing: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The entry of a thing in the document, and its arrays."""
    entry, array = _packed_variable(thing) if isinstance(thing, Variable) else _packed(path, thing)
    arrays = {} if array is None else {path: array}
    if isinstance(thing, Variable) and (num_parts := entry.get("parts")):
        arrays[_parts_path(path)] = read_parts(thing)
        assert len(arrays[_parts_path(path)]) == num_parts
    return entry, {name: array for name, array in arrays.items() if array.size}


def _packed_variable(variable: Variable) -> tuple[dict[str, Any], np.ndarray | None]:
    array = np.array(variable.read_value()) if is_combinable(variable) else None
    entry = {"kind": "variable", "name": variable.name, "shape": list(variable.shape)}
    entry["dtype"] = str(variable.dtype)
    num_replicas = variable.distribute_strategy.num_replicas_in_sync
    if has_parts(variable) and (num_replicas > 1 or array is None):
        entry |= {"parts": num_replicas, "aggregation": variable.aggregation.name}
    return entry, array


def _parts_path(path: str) -> str:
    return f"{path}//parts"  # no variable can be called so: `path` is one, and has nothing in it


def _packed(path: str, thing: Any) -> tuple[dict[str, Any], np.ndarray | None]:
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
            f"The state of {path} is changed by JSON: {original!r}. Use lists instead of tuples, and "
            "strings as keys."
        )
    return {"kind": "state", "type": type(thing).__name__, "state": state}, None


def _shape(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype)}


def array_of(entry: Mapping[str, Any], path: str, content: Content) -> np.ndarray:
    """The array of an entry; arrays without elements are not stored."""
    return _stored(path, tuple(entry["shape"]), entry, content)


def arrays_of(path: str, content: Content) -> dict[str, np.ndarray]:
    """All arrays of an entry, by their names in the content."""
    names = (path, _parts_path(path))
    return {name: content.arrays[name] for name in names if name in content.arrays}


def _parts_of(entry: Mapping[str, Any], path: str, content: Content) -> np.ndarray:
    return _stored(_parts_path(path), (entry["parts"], *entry["shape"]), entry, content)


def _stored(name: str, shape: tuple[int, ...], entry: Mapping[str, Any], content: Content) -> np.ndarray:
    if 0 in shape:
        return np.zeros(shape, jnp.dtype(entry["dtype"]))
    return content.arrays[name]


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
    """Raise unless everything that exists and was saved fits."""
    both = [path for path in things if path in saved]
    found = [(path, misfit(things[path], saved[path])) for path in both]
    _raise([f"{path} {problem}" for path, problem in found if problem is not None], where)


def check_overlap(things: Mapping[str, Any], saved: Mapping[str, Any], where: str) -> None:
    """Raise if nothing that exists was saved."""
    if things and not set(things) & set(saved):
        listing = f"here are {few(list(things))}, there {few(list(saved))}"
        _raise([f"the checkpoint is of other objects: {listing}"], where)


def _raise(problems: list[str], where: str) -> None:
    if problems:
        raise CheckpointMismatchError(
            f"The checkpoint {where} does not fit: {'; '.join(problems)}. Nothing was restored."
        )


def misfit(thing: Any, entry: Mapping[str, Any]) -> str | None:
    """Why a saved state does not fit a thing; None if it does."""
    kind = kind_of(thing)
    if kind != entry["kind"]:
        return f"is {_a(kind)} here and {_a(entry['kind'])} there"
    if kind == "variable" and list(thing.shape) != entry["shape"]:
        return f"has shape {thing.shape} here and {tuple(entry['shape'])} there"
    if kind == "variable" and not dtypes_fit(thing.dtype, entry["dtype"]):
        return f"has dtype {thing.dtype} here and {entry['dtype']} there"
    return cannot_combine(thing, entry) if kind == "variable" else None


def dtypes_fit(here: Any, there: str) -> bool:
    """Whether values can be restored: the dtypes are equal, or both floating-point."""
    both = np.dtype(here), jnp.dtype(there)
    if both[0] == both[1]:
        return True
    here_complex, there_complex = (jnp.issubdtype(dtype, jnp.complexfloating) for dtype in both)
    loses = there_complex and not here_complex
    return not loses and all(jnp.issubdtype(dtype, jnp.inexact) for dtype in both)


def restore_variable(variable: Variable, path: str, entry: Mapping[str, Any], content: Content) -> None:
    """Give a variable its saved value, or each replica its saved part."""
    if takes_parts(variable, entry):
        write_parts(variable, _parts_of(entry, path, content).astype(variable.dtype))
        return
    value = array_of(entry, path, content).astype(variable.dtype)
    if is_combinable(variable):
        variable.assign(value, read_value=False)
    else:  # each replica's part is the value
        write_parts(variable, np.stack([value] * variable.distribute_strategy.num_replicas_in_sync))


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


@contextlib.contextmanager
def one_moment(things: Iterable[Any]) -> Iterator[None]:
    """A `with` block in which no other thread changes the variables among `things`."""
    strategies = [thing.distribute_strategy for thing in things if isinstance(thing, Variable)]
    stores = {strategy.store.number: strategy.store for strategy in strategies}
    with contextlib.ExitStack() as stack:
        for number in sorted(stores):  # the order in which compiled steps take the locks
            stack.enter_context(stores[number].exclusive())
        yield


def few(names: list[str]) -> str:
    """A list of names for a message, cut if it is long."""
    shown = ", ".join(names[:6])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 6 else shown or "none"
