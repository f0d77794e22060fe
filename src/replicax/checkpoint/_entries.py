"""How one object is stored in a checkpoint: its arrays, and an entry in the document for the rest.

The paths of `_tracking.py` name both. `pack` and `_pack` turn an object into arrays and an entry;
`unpack` and `restore_variable` do the reverse.
"""

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

from replicax.checkpoint._boxes import Box, assemble, num_elements, whole_box
from replicax.checkpoint._content import SMALL_BYTES, Content, DeferredArray
from replicax.checkpoint._parts import (
    cannot_combine,
    has_parts,
    is_combinable,
    read_parts,
    takes_parts,
    write_parts,
)
from replicax.checkpoint._pieces import (
    is_divided,
    needed_boxes,
    overlaps,
    read_piece,
    restored_array,
    saved_pieces,
    split_into_pieces,
)
from replicax.errors import CheckpointError, CheckpointMismatchError
from replicax.topology import is_key
from replicax.values import is_number
from replicax.variables import Variable, exclusive

__all__ = [
    "FORMATS",
    "array_of",
    "check_fit",
    "check_overlap",
    "dtypes_fit",
    "shorten",
    "format_of",
    "kind_of",
    "find_mismatch",
    "locked",
    "pack",
    "restore_variable",
    "sizes_of",
    "unpack",
]


FORMATS = (1, 2, 3)
"""The document formats that can be read. Format 2 allows variables with per-replica parts and no combined
value; format 3 allows values that are stored in pieces."""


def format_of(entries: Mapping[str, Any]) -> int:
    """The oldest format that can express these entries."""
    if any("pieces" in entry for entry in entries.values()):
        return 3
    return 2 if any(entry.get("aggregation") == "NONE" for entry in entries.values()) else 1


class Packed(NamedTuple):
    """One object as it is stored."""

    entry: dict[str, Any]
    arrays: dict[str, Any]
    own: list[str] = []  # noqa: RUF012 - never changed
    """The names of the arrays that this process writes; ignored on process 0."""


def pack(path: str, thing: Any, copy: bool) -> Packed:
    """Pack an object into an entry and arrays; without `copy`, large arrays are copied when written."""
    if not isinstance(thing, Variable):
        entry, array = _pack(path, thing)
        return Packed(entry, {path: array} if array is not None and array.size else {})
    entry = {"kind": "variable", "name": thing.name, "shape": list(thing.shape), "dtype": str(thing.dtype)}
    return _pack_parts(path, thing, entry) if has_parts(thing) else _pack_value(path, thing, entry, copy)


def _pack_parts(path: str, variable: Variable, entry: dict[str, Any]) -> Packed:
    arrays = {path: np.array(variable.read_value())} if is_combinable(variable) else {}
    num_replicas = variable.distribute_strategy.num_replicas_in_sync
    if num_replicas > 1 or not arrays:
        entry |= {"parts": num_replicas, "aggregation": variable.aggregation.name}
        arrays[_parts_path(path)] = read_parts(variable)
    return Packed(entry, {name: array for name, array in arrays.items() if array.size})


def _pack_value(path: str, variable: Variable, entry: dict[str, Any], copy: bool) -> Packed:
    array, shape, process = variable._stored_array(), variable.shape, jax.process_index()
    pieces = split_into_pieces(array, path, shape)
    if len(pieces) > 1:
        entry["pieces"] = [list(map(list, piece.box)) for piece in pieces]
    is_whole = array.is_fully_addressable or array.is_fully_replicated
    arrays: dict[str, Any] = {}
    for piece in pieces:
        is_small = piece.num_bytes <= SMALL_BYTES
        if piece.process == process or (is_whole and is_small):
            later = DeferredArray(piece.num_bytes, functools.partial(read_piece, array, shape, piece.box))
            arrays[piece.name] = later.read() if copy or is_small else later
    return Packed(entry, arrays, [] if is_whole else list(arrays))


def _parts_path(path: str) -> str:
    return f"{path}//parts"  # can't clash with a variable: paths contain no empty names


def _pack(path: str, thing: Any) -> tuple[dict[str, Any], np.ndarray | None]:
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
            f"The state of {path} does not survive JSON unchanged: {original!r}. Use lists instead of "
            "tuples, and strings as keys."
        )
    return {"kind": "state", "type": type(thing).__name__, "state": state}, None


def _shape(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype)}


def array_of(entry: Mapping[str, Any], path: str, content: Content, box: Box | None = None) -> np.ndarray:
    """The array of an entry, or a box of it. Empty arrays are not stored, so they are created here."""
    pieces = saved_pieces(path, entry)
    if box is None and len(pieces) == 1:
        return content.arrays[pieces[0][0]]
    parts = [(own, functools.partial(content.arrays.__getitem__, name)) for name, own in pieces]
    return assemble(box or whole_box(entry["shape"]), jnp.dtype(entry["dtype"]), parts)


def sizes_of(path: str, entry: Mapping[str, Any], thing: Any = None) -> dict[str, int]:
    """The names of an entry's arrays and their sizes in bytes; given `thing`, only those that it needs."""
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


def unpack(entry: Mapping[str, Any], path: str, content: Content) -> Any:
    """Unpack an array, a random key or a number."""
    if entry["kind"] == "number":
        return entry["value"]
    array = array_of(entry, path, content)
    if entry["kind"] == "key":
        return jax.random.wrap_key_data(jnp.asarray(array), impl=entry["impl"])
    if entry.get("scalar"):
        return array[()]
    return jnp.asarray(array) if entry["jax"] else array


def kind_of(thing: Any) -> str:
    """The kind of entry that an object gets."""
    if isinstance(thing, Variable):
        return "variable"
    if is_number(thing):
        if is_key(thing):
            return "key"
        return "number" if isinstance(thing, bool | int | float) else "array"
    return "state"


def check_fit(things: Mapping[str, Any], saved: Mapping[str, Any], where: str) -> None:
    """Raise unless every object that exists here and was saved matches its entry."""
    both = [path for path in things if path in saved]
    found = [(path, find_mismatch(things[path], saved[path])) for path in both]
    _raise_mismatch([f"{path} {problem}" for path, problem in found if problem is not None], where)


def check_overlap(things: Mapping[str, Any], saved: Mapping[str, Any], where: str) -> None:
    """Raise if the checkpoint and the program have no object in common."""
    if things and not set(things) & set(saved):
        listing = f"here are {shorten(list(things))}, there {shorten(list(saved))}"
        _raise_mismatch([f"the checkpoint is of other objects: {listing}"], where)


def _raise_mismatch(problems: list[str], where: str) -> None:
    if problems:
        raise CheckpointMismatchError(
            f"The checkpoint {where} does not fit: {'; '.join(problems)}. Nothing was restored."
        )


def find_mismatch(thing: Any, entry: Mapping[str, Any]) -> str | None:
    """Why an object can't be restored from an entry; None if it can."""
    kind = kind_of(thing)
    if kind != entry["kind"]:
        return f"is {_a(kind)} here and {_a(entry['kind'])} there"
    if kind == "variable" and list(thing.shape) != entry["shape"]:
        return f"has shape {thing.shape} here and {tuple(entry['shape'])} there"
    if kind == "variable" and not dtypes_fit(thing.dtype, entry["dtype"]):
        return f"has dtype {thing.dtype} here and {entry['dtype']} there"
    return cannot_combine(thing, entry) if kind == "variable" else None


def dtypes_fit(here: Any, there: str) -> bool:
    """Whether a value of one dtype can be restored into the other: equal, or both floating-point."""
    both = np.dtype(here), jnp.dtype(there)
    if both[0] == both[1]:
        return True
    here_complex, there_complex = (jnp.issubdtype(dtype, jnp.complexfloating) for dtype in both)
    loses = there_complex and not here_complex
    return not loses and all(jnp.issubdtype(dtype, jnp.inexact) for dtype in both)


def restore_variable(variable: Variable, path: str, entry: Mapping[str, Any], content: Content) -> None:
    """Assign the saved value to a variable, or its saved part to each replica."""
    if takes_parts(variable, entry):
        write_parts(variable, _parts_of(entry, path, content).astype(variable.dtype))
        return
    if is_divided(variable):
        variable._replace_array(restored_array(variable, lambda box: array_of(entry, path, content, box)))
        return
    value = array_of(entry, path, content).astype(variable.dtype)
    if is_combinable(variable):
        variable.assign(value, read_value=False)
    else:  # the saved value becomes each replica's part
        write_parts(variable, np.stack([value] * variable.distribute_strategy.num_replicas_in_sync))


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


@contextlib.contextmanager
def locked(things: Iterable[Any], *, may_take_long: bool = False) -> Iterator[None]:
    """A `with` block that locks the variables in `things`, for a consistent snapshot."""
    strategies = [thing.distribute_strategy for thing in things if isinstance(thing, Variable)]
    stores = {strategy.store for strategy in strategies}
    with exclusive(stores), contextlib.ExitStack() as stack:
        for store in stores if may_take_long else ():
            stack.callback(setattr, store, "may_take_long", False)
            store.may_take_long = True
        yield


def shorten(names: list[str]) -> str:
    """A list of names for a message, truncated if it is long."""
    shown = ", ".join(names[:6])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 6 else shown or "none"
