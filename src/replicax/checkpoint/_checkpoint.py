"""`rx.Checkpoint`: the state of a program, as values that do not depend on how they are laid out.

A variable is saved as one logical value: mirrored copies once, the parts of an ON_READ variable combined by
its aggregation. Restoring assigns that value to the variable as whatever strategy laid it out. So a
checkpoint fits any number of replicas and any strategy.
"""

from __future__ import annotations

import logging
import os
import pathlib
import weakref
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint._store import Content, Store
from replicax.checkpoint._tracking import track
from replicax.errors import CheckpointError, CheckpointMismatchError
from replicax.values import is_key, is_number
from replicax.variables import Variable, awaiting_values

__all__ = ["Checkpoint", "RestoreStatus"]

_logger = logging.getLogger("replicax")


@final
class Checkpoint:
    """The state of the objects that it is given, to be saved and restored.

    Args:
        **objects: what to save, by name: models, optimizers, metrics, iterators, structures of them; also
            arrays, random keys and numbers, which after a restore are attributes of the checkpoint. Objects
            are searched for variables in all their attributes.

    >>> import tempfile
    >>> w = rx.Variable([1.0, 2.0])
    >>> checkpoint = rx.Checkpoint(model={"w": w}, epoch=3)
    >>> path = checkpoint.save(tempfile.mkdtemp())
    >>> _ = w.assign([0.0, 0.0])
    >>> checkpoint.epoch = 0
    >>> _ = checkpoint.restore(path).assert_consumed()
    >>> w.read_value(), checkpoint.epoch
    (Array([1., 2.], dtype=float32), 3)
    """

    def __init__(self, **objects: Any) -> None:
        """Take note of the objects; nothing is looked at yet."""
        for name in objects:
            if "/" in name or hasattr(type(self), name):
                raise CheckpointError(f"Checkpoint({name}=...): choose another name.")
        self._names = tuple(objects)
        self._status: RestoreStatus | None = None
        for name, value in objects.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"Checkpoint({', '.join(self._names)})"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self!r} has no object called {name!r}.")

    def _objects(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    # Saving.

    def save(self, directory: str | os.PathLike[str]) -> str:
        """Write a checkpoint into `directory`, with the next number, and wait until it is there.

        To save in the background and delete old ones, use `rx.CheckpointManager`.

        Args:
            directory: a folder for checkpoints; made if it is not there.

        Returns:
            The path of the checkpoint.

        Raises:
            CheckpointError: it could not be written.
        """
        store = Store(directory)
        step = max(store.steps(), default=-1) + 1
        store.save(step, self.content())
        return str(store.path(step))

    def content(self) -> Content:
        """What a checkpoint would hold now: copies of all values, on the host."""
        arrays: dict[str, np.ndarray] = {}
        entries: dict[str, Any] = {}
        for path, thing in track(self._objects()).items():
            entries[path], array = _packed(path, thing)
            if array is not None and array.size:
                arrays[path] = array
        return Content(arrays, {"format": 1, "entries": entries})

    # Restoring.

    def restore(self, path: str | os.PathLike[str]) -> RestoreStatus:
        """Give all objects the state that a checkpoint holds.

        Variables that do not exist yet get their values when they are made, if their names tell which they
        are: an optimizer's slots, for one. Nothing is changed unless everything that exists fits.

        Args:
            path: what `save` returned, or a folder of checkpoints, of which the newest is taken.

        Returns:
            A `RestoreStatus`, which says what did not match; that is logged too.

        Raises:
            CheckpointMissingError: there is none.
            CheckpointMismatchError: a shape or a kind does not fit.
            CheckpointError: it can't be read.
        """
        store, step = _located(path)
        return self.restore_content(store.load(step), str(store.path(step)))

    def restore_content(self, content: Content, where: str) -> RestoreStatus:
        """Give all objects the state in `content`, which was read from `where`."""
        saved: Mapping[str, Any] = content.document["entries"]
        things = track(self._objects())
        _check_fit(things, saved, where)
        for path, thing in things.items():
            if path in saved:
                self._restore_one(path, thing, saved[path], content)
        missing = [path for path in things if path not in saved]
        # Kept here: values wait for variables to come as long as the checkpoint is there, and no longer.
        self._status = RestoreStatus(self, content, where, missing)
        return self._status

    def _restore_one(self, path: str, thing: Any, entry: Any, content: Content) -> None:
        if isinstance(thing, Variable):
            thing.assign(array_of(entry, path, content).astype(thing.dtype), read_value=False)
        elif entry["kind"] == "state":
            thing.restore(entry["state"])
        else:
            setattr(self, path, _unpacked(entry, path, content))


def _located(path: str | os.PathLike[str]) -> tuple[Store, int]:
    folder = pathlib.Path(path).absolute()
    if folder.name.isdecimal():
        return Store(folder.parent), int(folder.name)
    store = Store(folder)
    steps = store.steps()
    return store, steps[-1] if steps else 0


def _packed(path: str, thing: Any) -> tuple[dict[str, Any], np.ndarray | None]:
    """The entry of a thing in the document, and its array if it has one."""
    if isinstance(thing, Variable):
        array = np.array(thing.read_value())
        return {"kind": "variable", "name": thing.name, **_shape(array)}, array
    if is_key(thing):
        array = np.array(jax.random.key_data(thing))
        return {"kind": "key", "impl": str(jax.random.key_impl(thing)), **_shape(array)}, array
    if isinstance(thing, bool | int | float):
        return {"kind": "number", "value": thing}, None
    if is_number(thing):
        array = np.array(thing)
        return {"kind": "array", "jax": isinstance(thing, jax.Array), **_shape(array)}, array
    return {"kind": "state", "type": type(thing).__name__, "state": thing.state()}, None


def _shape(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype)}


def array_of(entry: Mapping[str, Any], path: str, content: Content) -> np.ndarray:
    """The array of an entry; one without elements is not stored."""
    if path in content.arrays:
        return content.arrays[path]
    return np.zeros(entry["shape"], jnp.dtype(entry["dtype"]))


def _unpacked(entry: Mapping[str, Any], path: str, content: Content) -> Any:
    if entry["kind"] == "number":
        return entry["value"]
    array = array_of(entry, path, content)
    if entry["kind"] == "key":
        return jax.random.wrap_key_data(jnp.asarray(array), impl=entry["impl"])
    return jnp.asarray(array) if entry["jax"] else array


def _kind(thing: Any) -> str:
    if isinstance(thing, Variable):
        return "variable"
    if is_number(thing):
        if is_key(thing):
            return "key"
        return "number" if isinstance(thing, bool | int | float) else "array"
    return "state"


def _check_fit(things: Mapping[str, Any], saved: Mapping[str, Any], where: str) -> None:
    """Raise unless everything that is both here and there fits."""
    problems = []
    for path, thing in things.items():
        entry = saved.get(path)
        if entry is None:
            continue
        kind = _kind(thing)
        if kind != entry["kind"]:
            problems.append(f"{path} is a {kind} here and a {entry['kind']} there")
        elif kind == "variable" and list(thing.shape) != entry["shape"]:
            problems.append(f"{path} has shape {thing.shape} here and {tuple(entry['shape'])} there")
    if not problems and things and not set(things) & set(saved):
        listing = f"here are {_few(list(things))}, there {_few(list(saved))}"
        problems.append(f"the checkpoint is of other objects: {listing}")
    if problems:
        raise CheckpointMismatchError(
            f"The checkpoint {where} does not fit: {'; '.join(problems)}. Nothing was restored."
        )


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 6 else shown or "none"


@final
class RestoreStatus:
    """What a restore found, and what it did not; returned by `Checkpoint.restore`.

    What did not match is logged in one line. `assert_consumed()` raises if there is any; `expect_partial()`
    says that it is meant so.

    >>> import tempfile
    >>> path = rx.Checkpoint(w=rx.Variable(1.0), b=rx.Variable(2.0)).save(tempfile.mkdtemp())
    >>> b = rx.Variable(0.0)
    >>> status = rx.Checkpoint(b=b).restore(path).expect_partial()
    >>> b.read_value(), status.unused, status.missing
    (Array(2., dtype=float32), ['w'], [])
    """

    def __init__(self, checkpoint: Checkpoint, content: Content, where: str, missing: list[str]) -> None:
        """Made by `Checkpoint.restore`."""
        self._checkpoint, self._content, self._where = checkpoint, content, where
        self.missing = missing
        self._given: set[str] = set()
        names: dict[str, list[str]] = {}
        for path in self._waiting(track(checkpoint._objects())):
            names.setdefault(self._entries[path]["name"], []).append(path)
        # Two variables of one name can't be told apart before they have a place.
        self._by_name = {name: paths[0] for name, paths in names.items() if len(paths) == 1}
        self._reference = weakref.WeakMethod(self._give)
        if self._by_name:
            awaiting_values.append(self._reference)
        self._report()

    @property
    def _entries(self) -> Mapping[str, Any]:
        return self._content.document["entries"]

    def _waiting(self, things: Mapping[str, Any]) -> list[str]:
        entries = self._entries.items()
        return [path for path, entry in entries if entry["kind"] == "variable" and path not in things]

    def _report(self) -> None:
        waiting = set(self._by_name.values())
        unused = [path for path in self.unused if path not in waiting]
        if unused or self.missing:
            _logger.warning(
                "The checkpoint %s was restored in part: it has no %s; the objects have no %s.",
                self._where,
                _few(self.missing),
                _few(unused),
            )
        if waiting:
            names = _few(sorted(waiting))
            _logger.info("The checkpoint %s keeps values for variables to come: %s.", self._where, names)

    def _give(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The saved value for a variable that is being made, if it is one that the checkpoint waits for."""
        path = self._by_name.get(name)
        if path is None or list(shape) != self._entries[path]["shape"]:
            return None
        del self._by_name[name]
        self._given.add(path)
        _logger.info("The new variable %r has its value from the checkpoint %s.", name, self._where)
        if not self._by_name:
            self._stop()
        return array_of(self._entries[path], path, self._content)

    def _stop(self) -> None:
        if self._reference in awaiting_values:
            awaiting_values.remove(self._reference)

    @property
    def unused(self) -> list[str]:
        """What the checkpoint has and the objects have not, now."""
        things = track(self._checkpoint._objects())
        return [path for path in self._entries if path not in things and path not in self._given]

    def assert_consumed(self) -> RestoreStatus:
        """Raise `CheckpointMismatchError` unless everything matched, in both directions."""
        problems = []
        if self.unused:
            problems.append(f"the objects have no {_few(self.unused)}")
        if self.missing:
            problems.append(f"it has no {_few(self.missing)}")
        if problems:
            raise CheckpointMismatchError(
                f"The checkpoint {self._where} was not restored completely: {'; '.join(problems)}."
            )
        return self

    def expect_partial(self) -> RestoreStatus:
        """Say that what did not match is left out on purpose; variables made later get no values."""
        self._stop()
        return self
