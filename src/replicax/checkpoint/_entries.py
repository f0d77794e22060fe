"""One thing in a checkpoint: its arrays, and an entry in the document with all else that it needs."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint._boxes import Box, assembled, num_elements, whole_box
from replicax.checkpoint._content import SMALL_BYTES, Content, Later
from replicax.checkpoint._parts import (
    cannot_combine,
    has_parts,
    is_combinable,
    read_parts,
    takes_parts,
    write_parts,
)
from replicax.checkpoint._pieces import (
    divided,
    is_divided,
    needed_boxes,
    overlaps,
    read_piece,
    restored_array,
    saved_pieces,
)
from replicax.errors import CheckpointError, CheckpointMismatchError
from replicax.values import is_key, is_number
from replicax.variables import Variable

__all__ = [
    "FORMATS",
    "array_of",
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
    "sizes_of",
    "unpacked",
]


FORMATS = (1, 2, 3)
"""The formats of documents that can be read. In format 2 a variable may have parts alone, and no value; in
format 3 a value may be stored in pieces."""


def format_of(entries: Mapping[str, Any]) -> int:
    """The oldest format that can express these entries."""
    if any("pieces" in entry for entry in entries.values()):
        return 3
    return 2 if any(entry.get("aggregation") == "NONE" for entry in entries.values()) else 1


class Packed(NamedTuple):
    """A thing in a checkpoint."""

    entry: dict[str, Any]
    arrays: dict[str, Any]
    own: list[str] = []  # noqa: RUF012 - never changed
    """The arrays that this process writes, if it is not the first one."""


def packed(path: str, thing: Any, copy: bool) -> Packed:
    """The entry of a thing in the document, and its arrays; without `copy`, large ones are copied later."""
    if not isinstance(thing, Variable):
        entry, array = _packed(path, thing)
        return Packed(entry, {path: array} if array is not None and array.size else {})
    entry = {"kind": "variable", "name": thing.name, "shape": list(thing.shape), "dtype": str(thing.dtype)}
    return (
        _packed_parts(path, thing, entry) if has_parts(thing) else _packed_value(path, thing, entry, copy)
    )


def _packed_parts(path: str, variable: Variable, entry: dict[str, Any]) -> Packed:
    arrays = {path: np.array(variable.read_value())} if is_combinable(variable) else {}
    num_replicas = variable.distribute_strategy.num_replicas_in_sync
    if num_replicas > 1 or not arrays:
        entry |= {"parts": num_replicas, "aggregation": variable.aggregation.name}
        arrays[_parts_path(path)] = read_parts(variable)
    return Packed(entry, {name: array for name, array in arrays.items() if array.size})


def _packed_value(path: str, variable: Variable, entry: dict[str, Any], copy: bool) -> Packed:
    array, shape, process = variable._stored_array(), variable.shape, jax.process_index()
    pieces = divided(array, path, shape)
    if len(pieces) > 1:
        entry["pieces"] = [list(map(list, piece.box)) for piece in pieces]
    is_whole = array.is_fully_addressable or array.is_fully_replicated
    arrays: dict[str, Any] = {}
    for piece in pieces:
        is_small = piece.num_bytes <= SMALL_BYTES
        if piece.process == process or (is_whole and is_small):
            later = Later(piece.num_bytes, functools.partial(read_piece, array, shape, piece.box))
            arrays[piece.name] = later.read() if copy or is_small else later
    return Packed(entry, arrays, [] if is_whole else list(arrays))


def _parts_path(path: str) -> str:
    return f"{path}//parts"  # no variable can have this name: `path` is one, and contains nothing


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


def array_of(entry: Mapping[str, Any], path: str, content: Content, box: Box | None = None) -> np.ndarray:
    """The array of an entry, or a box of it; arrays without elements are not stored."""
    pieces = saved_pieces(path, entry)
    if box is None and len(pieces) == 1:
        return content.arrays[pieces[0][0]]
    parts = [(own, functools.partial(content.arrays.__getitem__, name)) for name, own in pieces]
    return assembled(box or whole_box(entry["shape"]), jnp.dtype(entry["dtype"]), parts)


def sizes_of(path: str, entry: Mapping[str, Any], thing: Any = None) -> dict[str, int]:
    """The names and sizes in bytes of the arrays of an entry, or of those that a thing here needs."""
    if "shape" not in entry or 0 in entry["shape"]:
        return {}
    itemsize = jnp.dtype(entry["dtype"]).itemsize
    if isinstance(thing, Variable) and takes_parts(thing, entry):
        pieces = []
    else:
        pieces = saved_pieces(path, entry) if entry.get("aggregation") != "NONE" else []
    if isinstance(thing, Variable) and is_divided(thing):
        pieces = [(name, box) for name, box in pieces if overlaps(box, needed_boxes(thing))]
    sizes = {name: num_elements(box) * itemsize for name, box in pieces}
    if "parts" in entry and (thing is None or not pieces):
        sizes[_parts_path(path)] = entry["parts"] * math.prod(entry["shape"]) * itemsize
    return sizes


def _parts_of(entry: Mapping[str, Any], path: str, content: Content) -> np.ndarray:
    shape = (entry["parts"], *entry["shape"])
    return np.zeros(shape, jnp.dtype(entry["dtype"])) if 0 in shape else content.arrays[_parts_path(path)]


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
    if is_divided(variable):
        variable._replace_array(restored_array(variable, lambda box: array_of(entry, path, content, box)))
        return
    value = array_of(entry, path, content).astype(variable.dtype)
    if is_combinable(variable):
        variable.assign(value, read_value=False)
    else:  # each replica's part is the value
        write_parts(variable, np.stack([value] * variable.distribute_strategy.num_replicas_in_sync))


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


@contextlib.contextmanager
def one_moment(things: Iterable[Any], *, may_take_long: bool = False) -> Iterator[None]:
    """A `with` block in which no other thread changes the variables among `things`."""
    strategies = [thing.distribute_strategy for thing in things if isinstance(thing, Variable)]
    stores = {strategy.store.number: strategy.store for strategy in strategies}
    with contextlib.ExitStack() as stack:
        for number in sorted(stores):  # the order in which compiled steps take the locks
            stack.enter_context(stores[number].exclusive())
            if may_take_long:
                stack.callback(setattr, stores[number], "may_take_long", False)
                stores[number].may_take_long = True
        yield


def few(names: list[str]) -> str:
    """A list of names for a message, cut if it is long."""
    shown = ", ".join(names[:6])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 6 else shown or "none"
