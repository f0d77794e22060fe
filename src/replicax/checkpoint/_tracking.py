"""Tracking: finds everything with state in the objects given to a checkpoint, and names it by its path.

The search covers lists, tuples, dicts and the attributes of all other objects, and visits each object once.
Three kinds of things have state: variables; anything with `state()` and `restore(state)`, such as an
iterator; and arrays and numbers that are passed to `rx.Checkpoint(...)` directly. An object can choose its
own parts with a method `checkpoint_items()` that returns a dict.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from replicax.errors import CheckpointError
from replicax.execution import Function
from replicax.strategies import Strategy
from replicax.values import is_number
from replicax.variables import Variable

__all__ = [
    "HasItems",
    "MayGrow",
    "Stateful",
    "unbuilt",
    "skipped_numbers",
    "path_of",
    "track",
    "with_saved_names",
]


@runtime_checkable
class Stateful(Protocol):
    """Something whose state is a small structure of numbers and strings."""

    def state(self) -> Any:
        """The state, which can be written as JSON."""
        ...

    def restore(self, state: Any) -> None:
        """Return to a state that `state` returned."""
        ...


@runtime_checkable
class HasItems(Protocol):
    """Something that chooses which of its parts a checkpoint holds."""

    def checkpoint_items(self) -> Mapping[str, Any]:
        """Its parts, by name."""
        ...


@runtime_checkable
class MayGrow(Protocol):
    """Something that creates variables later, such as a model that is built by its first call."""

    def checkpoint_may_grow(self) -> bool:
        """Whether it has yet to create some of its variables."""
        ...


# Not searched: they have no state, or none that belongs to the program.
_OPAQUE = (
    str
    | bytes
    | bytearray
    | bool
    | int
    | float
    | complex
    | None
    | enum.Enum
    | type
    | types.ModuleType
    | types.FunctionType
    | types.BuiltinFunctionType
    | types.MethodType
    | np.ndarray
    | np.generic
    | jax.Array
    | jax.Device
    | jax.sharding.Mesh
    | jax.sharding.Sharding
    | Strategy
    | Function
)


def track(roots: Mapping[str, Any]) -> dict[str, Any]:
    """Everything with state in `roots`, by path: variables, stateful objects, arrays and numbers."""
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}
    for name, root in roots.items():
        is_numpy = isinstance(root, np.ndarray | np.generic)
        if is_numpy and (not is_number(root) or root.dtype.names is not None):
            raise CheckpointError(
                f"{name} is an array of dtype {root.dtype}, but only numeric arrays can be saved. Leave it "
                "out, or put it into an object with `state()` and `restore(state)`, whose state is JSON."
            )
        if is_number(root):
            found[name] = root
            continue
        for path, thing in _walk(name, root, seen):
            if path in found:
                raise CheckpointError(f"Two things have the path {path!r} in the checkpoint; rename one.")
            found[path] = thing
    return found


def _walk(path: str, thing: Any, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Everything with state in `thing`, by path."""
    for found, part in _visit(path, thing, seen):
        if _has_state(part):
            yield found, part


def _visit(path: str, thing: Any, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """`thing` and everything inside it, from the outside in.

    `seen` holds the objects, too, so that their ids can't be reused during the search.
    """
    if isinstance(thing, _OPAQUE) or id(thing) in seen:
        return
    seen[id(thing)] = thing
    yield path, thing
    if not _has_state(thing):
        for name, part in _parts(thing):
            yield from _visit(f"{path}/{name}", part, seen)


def _visit_all(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    seen: dict[int, Any] = {}
    for name, root in roots.items():
        if not is_number(root):
            yield from _visit(name, root, seen)


def path_of(wanted: Any, roots: Mapping[str, Any]) -> str | None:
    """The path of an object in `roots`; None if it is not there."""
    return next((path for path, thing in _visit_all(roots) if thing is wanted), None)


def unbuilt(roots: Mapping[str, Any]) -> list[str]:
    """The paths of the objects in `roots` that have yet to create variables."""
    return [
        path
        for path, thing in _visit_all(roots)
        if isinstance(thing, MayGrow) and thing.checkpoint_may_grow()
    ]


def with_saved_names(
    things: Mapping[str, Any], roots: Mapping[str, Any], saved: Mapping[str, Any]
) -> dict[str, Any]:
    """`things` by the paths under which they were saved: earlier versions numbered Keras variables."""
    if all(path in saved for path in things):
        return dict(things)
    numbered: dict[int, str] = {}
    for path, owner in _visit_all(roots):
        items = getattr(owner, "checkpoint_items_by_number", None)
        if items is None or isinstance(owner, type):
            continue
        by_number = items()
        # The numbers are only right once all variables exist.
        if f"{path}/{len(by_number) - 1}" in saved and f"{path}/{len(by_number)}" not in saved:
            for number, variable in by_number.items():
                numbered.setdefault(id(variable), f"{path}/{number}")
    return {path if path in saved else numbered.get(id(x), path): x for path, x in things.items()}


def skipped_numbers(roots: Mapping[str, Any]) -> list[str]:
    """The paths of arrays and numbers inside lists and dicts in `roots`, which `track` skips.

    Arrays and numbers in attributes of objects are not listed: they are mostly sizes and settings.
    """
    return [
        path for name, root in roots.items() if not is_number(root) for path in _numbers_in(name, root, {})
    ]


def _numbers_in(path: str, thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    if is_number(thing):
        yield path
    elif isinstance(thing, dict | list | tuple | HasItems) and id(thing) not in seen:
        seen[id(thing)] = thing
        for name, part in [] if _is_stateful(thing) else _parts(thing):
            yield from _numbers_in(f"{path}/{name}", part, seen)


def _has_state(thing: Any) -> bool:
    return isinstance(thing, Variable) or _is_stateful(thing)


def _is_stateful(thing: Any) -> bool:
    # `isinstance` on a protocol only checks that the names exist; `state` could be any attribute.
    is_one = isinstance(thing, Stateful) and not isinstance(thing, type)
    return is_one and callable(thing.state) and callable(thing.restore)


def _parts(thing: Any) -> list[tuple[str, Any]]:
    """The items of a container or the attributes of an object, by name."""
    if isinstance(thing, HasItems):
        return [(str(name), part) for name, part in thing.checkpoint_items().items()]
    if isinstance(thing, Mapping):
        items = [(_checked_key(key), part) for key, part in thing.items()]
        return [*items, *getattr(thing, "__dict__", {}).items()]
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return [(name, getattr(thing, name)) for name in thing._fields]  # pyright: ignore
    if isinstance(thing, list | tuple | collections.deque):
        return [*((str(i), part) for i, part in enumerate(thing)), *getattr(thing, "__dict__", {}).items()]
    if isinstance(thing, set | frozenset):
        if any(True for part in thing for _ in _walk("", part, {})):
            raise CheckpointError(
                "Variables in a set have no order and can't be saved; use a list or a dict."
            )
        return []
    attributes = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = getattr(kind, "__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{kind.__name__.lstrip('_')}{slot}" if private else slot
            if name not in ("__weakref__", "__dict__") and hasattr(thing, name):
                attributes[name] = getattr(thing, name)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        for field in dataclasses.fields(thing):
            attributes.setdefault(field.name, getattr(thing, field.name, None))
    return list(attributes.items())


def _checked_key(key: Any) -> str:
    text = str(key)
    if "/" in text:
        raise CheckpointError(
            f"The key {text!r} of a dict with variables contains '/', which separates names in a "
            "checkpoint. Use another key."
        )
    return text
