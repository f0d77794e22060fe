"""`rx.Checkpoint`: the state of a program, as values that do not depend on how they are laid out.

A variable is saved as one logical value: mirrored copies once, the parts of an ON_READ variable combined by
its aggregation. Restoring assigns that value to the variable as whatever strategy laid it out. So a
checkpoint fits any number of replicas and any strategy.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import pathlib
import re
import weakref
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_transforming
from replicax.checkpoint._store import Content, Store
from replicax.checkpoint._tracking import left_out, track
from replicax.contexts import has_strategy, in_cross_replica_context
from replicax.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ContextError,
)
from replicax.types import VariableAggregation
from replicax.values import is_key, is_number
from replicax.variables import NewVariable, SyncOnReadVariable, Variable, awaiting_values

__all__ = ["Checkpoint", "RestoreStatus", "read_content"]

_logger = logging.getLogger("replicax")


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
        self._status: RestoreStatus | None = None
        self._told: set[str] = set()
        for name, value in objects.items():
            if name.startswith("_"):
                raise CheckpointError(f"Checkpoint({name}=...): choose another name.")
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"Checkpoint({', '.join(self._objects())})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Take note of another object; it gets its values if a checkpoint was restored that has them."""
        if "/" in name or hasattr(type(self), name):
            raise CheckpointError(f"Checkpoint: an object can't be called {name!r}; choose another name.")
        super().__setattr__(name, value)
        if not name.startswith("_") and self._status is not None and not is_number(value):
            self._status.attach(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # what copy and pickle ask for, before anything is there
        raise AttributeError(f"{self!r} has no object called {name!r}.")

    def _objects(self) -> dict[str, Any]:
        return {name: thing for name, thing in vars(self).items() if not name.startswith("_")}

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
        return self._save_into(Store(directory), first=0)

    def _save_into(self, store: Store, *, first: int) -> str:
        step = max(store.steps(), default=first - 1) + 1
        store.save(step, self.content())
        return str(store.path(step))

    def content(self) -> Content:
        """What a checkpoint would hold now: copies of all values, on the host."""
        _require_outside("save")
        if self._status is not None:
            self._status.attach()
        things = track(self._objects())
        self._tell_left_out(things)
        arrays: dict[str, np.ndarray] = {}
        entries: dict[str, Any] = {}
        for path, thing in things.items():
            entries[path], array = _packed(path, thing)
            if array is not None and array.size:
                arrays[path] = array
        content = Content(arrays, {"format": 1, "entries": entries})
        if self._status is not None:
            kept = self._status._slots_to_come(content)
            arrays.update(kept.arrays)
            entries.update(kept.document["entries"])
        return content

    def checkpoint_items(self) -> dict[str, Any]:
        """What another checkpoint holds of this one."""
        return self._objects()

    def _tell_left_out(self, things: Mapping[str, Any]) -> None:
        """Warn, once for each object, of what the user may think is saved."""
        new = {name: thing for name, thing in self._objects().items() if name not in self._told}
        paths = left_out(new)
        found = {path.partition("/")[0] for path in (*things, *paths)}
        rest = [name for name in new if name not in found and not _is_empty(new[name])]
        stateless = [name for name in rest if not track({name: new[name]})]
        if stateless:
            self._told.update(stateless)
            _logger.warning(
                "%r holds nothing of %s: there are no variables, nor anything with `state()` and "
                "`restore(state)`.",
                self,
                _few(stateless),
            )
        if paths:
            self._told |= {path.partition("/")[0] for path in paths}
            _logger.warning(
                "%r does not hold %s: arrays and numbers in structures are not saved. Make variables of "
                "them (`rx.variables`), or give each to the checkpoint by a name of its own.",
                self,
                _few(paths),
            )

    # Restoring.

    def restore(self, path: str | os.PathLike[str]) -> RestoreStatus:
        """Give all objects the state that a checkpoint holds.

        Variables that do not exist yet get their values when they are made: an optimizer's slots, and
        variables of the objects here if their names tell which they are. Others get them when they are
        found in their place, by `save` or the status, unless they were written before. Nothing is changed
        unless everything that exists fits.

        Args:
            path: what `save` returned, or a folder of checkpoints, of which the newest is taken.

        Returns:
            A `RestoreStatus`, which says what did not match; that is logged too.

        Raises:
            CheckpointMissingError: there is none.
            CheckpointMismatchError: a shape or a kind does not fit.
            CheckpointError: it can't be read.
        """
        _require_outside("restore")
        store, step = _located(path)
        return self.restore_content(store.load(step), str(store.path(step)))

    def restore_content(self, content: Content, where: str) -> RestoreStatus:
        """Give all objects the state in `content`, which was read from `where`."""
        if content.document.get("format") != 1:
            found = content.document.get("format")
            raise CheckpointError(f"{where} has the format {found!r}, and 1 is what can be read here.")
        if self._status is not None:
            self._status._stop()  # what waits for variables to come now is this one
        self._status = None
        saved: Mapping[str, Any] = content.document["entries"]
        things = track(self._objects())
        _check_fit(things, saved, where)
        both = {path: thing for path, thing in things.items() if path in saved}
        states = {path: thing for path, thing in both.items() if _kind(thing) == "state"}
        self._restore_states(states, content)
        for path, thing in both.items():
            if path not in states:
                self._restore_one(path, thing, saved[path], content)
        missing = [path for path in things if path not in saved]
        self._status = RestoreStatus(self, content, where, missing)
        return self._status

    def _restore_states(self, things: Mapping[str, Any], content: Content) -> None:
        """Restore things that may refuse their states; if one does, the others go back to theirs."""
        before = [(thing, copy.deepcopy(thing.state())) for thing in things.values()]
        for i, (path, thing) in enumerate(things.items()):
            try:
                self._restore_one(path, thing, content.document["entries"][path], content)
            except CheckpointMismatchError:
                for other, state in before[:i]:
                    other.restore(state)
                raise

    def _restore_one(self, path: str, thing: Any, entry: Any, content: Content) -> None:
        if isinstance(thing, Variable):
            _assign(thing, array_of(entry, path, content).astype(thing.dtype))
        elif entry["kind"] == "state":
            try:
                thing.restore(copy.deepcopy(entry["state"]))
            except Exception as error:
                raise CheckpointMismatchError(f"{path} could not be restored: {error}") from error
        else:
            setattr(self, path, _unpacked(entry, path, content))


def _assign(variable: Variable, value: np.ndarray) -> None:
    if _has_no_value(variable):  # every replica's part is the value
        variable.distribute_strategy.run(lambda: variable.assign(value, read_value=False))
    else:
        variable.assign(value, read_value=False)


def read_content(path: str | os.PathLike[str]) -> Content:
    """What a checkpoint holds: of a folder of checkpoints, the newest one."""
    store, step = _located(path)
    return store.load(step)


def _located(path: str | os.PathLike[str]) -> tuple[Store, int]:
    folder = pathlib.Path(path).absolute()
    store = Store(folder)
    steps = store.steps()
    if steps:
        return store, steps[-1]
    named = store.others()
    is_folder = folder.is_dir() and (bool(named) or not any(folder.iterdir()))
    number = re.fullmatch(r"(.*?)(0|[1-9]\d*)", folder.name)
    if number is None or is_folder:
        there = f" There are {_few(named)}; name one." if named else ""
        raise CheckpointMissingError(f"There is no numbered checkpoint in {folder}.{there}")
    return Store(folder.parent, prefix=number[1]), int(number[2])


def _packed(path: str, thing: Any) -> tuple[dict[str, Any], np.ndarray | None]:
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
        if array.dtype.names is not None:
            raise CheckpointError(f"{path} is an array of the dtype {array.dtype}, not of numbers.")
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
    return none and isinstance(variable, SyncOnReadVariable)


def _require_outside(what: str) -> None:
    if has_strategy() and not in_cross_replica_context():
        raise ContextError(
            f"Checkpoint.{what} was called in a replica function, once for each replica. Call it outside."
        )
    if is_transforming():
        raise ContextError(
            f"Checkpoint.{what} was called in a function that is being compiled, where variables have no "
            "values. Call it outside, between steps."
        )


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
    if entry.get("scalar"):
        return array[()]
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
    both = [path for path in things if path in saved]
    found = [(path, _misfit(things[path], saved[path])) for path in both]
    problems = [f"{path} {problem}" for path, problem in found if problem is not None]
    if not problems and things and not set(things) & set(saved):
        listing = f"here are {_few(list(things))}, there {_few(list(saved))}"
        problems.append(f"the checkpoint is of other objects: {listing}")
    if problems:
        raise CheckpointMismatchError(
            f"The checkpoint {where} does not fit: {'; '.join(problems)}. Nothing was restored."
        )


def _misfit(thing: Any, entry: Mapping[str, Any]) -> str | None:
    """Why a thing can't have the state that was saved; None if it can."""
    kind = _kind(thing)
    if kind != entry["kind"]:
        return f"is {_a(kind)} here and {_a(entry['kind'])} there"
    if kind == "variable" and list(thing.shape) != entry["shape"]:
        return f"has shape {thing.shape} here and {tuple(entry['shape'])} there"
    if kind == "variable" and not _dtypes_fit(thing.dtype, entry["dtype"]):
        return f"has dtype {thing.dtype} here and {entry['dtype']} there"
    return None


def _dtypes_fit(here: Any, there: str) -> bool:
    """Whether values can be restored: the same dtype, or both of floating-point numbers."""
    both = np.dtype(here), jnp.dtype(there)
    if both[0] == both[1]:
        return True
    here_complex, there_complex = (jnp.issubdtype(dtype, jnp.complexfloating) for dtype in both)
    loses = there_complex and not here_complex
    return not loses and all(jnp.issubdtype(dtype, jnp.inexact) for dtype in both)


def _is_empty(thing: Any) -> bool:
    return thing is None or (isinstance(thing, dict | list | tuple) and not len(thing))


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 6 else shown or "none"


_waiting: list[RestoreStatus] = []
"""Those with values for variables to come, which nobody else need hold on to."""


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
        self._used = set(track(checkpoint._objects())) & set(self._entries)
        self._left: dict[str, str] = {}
        self._is_partial = False
        self._slots: set[str] = set()
        self._by_name: dict[str, str] = {}
        self._reference = weakref.WeakMethod(self._give)
        self._wait_for_variables()
        self._report()

    def _wait_for_variables(self) -> None:
        """Be asked for values of variables to come, if there are any here."""
        self._slots, self._by_name = self._find_awaited()
        if (self._slots or self._by_name) and self._reference not in awaiting_values:
            awaiting_values.append(self._reference)
            _waiting.append(self)

    def _find_awaited(self) -> tuple[set[str], dict[str, str]]:
        """The places of slots of the optimizers here, and by name those of other variables to come."""
        roots = set(self._checkpoint._objects())
        slots: set[str] = set()
        names: dict[str, list[str]] = {}
        for path, entry in self._entries.items():
            if entry["kind"] != "variable" or path in self._used:
                continue
            owner, is_slot, _ = path.rpartition("/slots/")
            if is_slot and f"{owner}/iterations" in self._used:
                slots.add(path)
            elif path.partition("/")[0] in roots and not self._is_partial:
                names.setdefault(entry["name"], []).append(path)
        names.pop("Variable:0", None)  # anybody's name
        # Two variables of one name can't be told apart before they have a place.
        return slots, {name: paths[0] for name, paths in names.items() if len(paths) == 1}

    @property
    def _entries(self) -> Mapping[str, Any]:
        return self._content.document["entries"]

    def _report(self) -> None:
        waiting = self._slots | set(self._by_name.values())
        unused = [path for path in self.unused if path not in waiting]
        if unused or self.missing:
            _logger.warning(
                "The checkpoint %s was restored in part: %s.", self._where, self._problems(unused)
            )
        if waiting:
            names = _few(sorted(waiting))
            _logger.info("The checkpoint %s keeps values for variables to come: %s.", self._where, names)

    def _give(self, new: NewVariable) -> np.ndarray | None:
        """The saved value for a variable that is being made, if it is one that the checkpoint waits for."""
        path = self._by_name.get(new.name) if new.beside is None else self._path_of(new)
        value = self._value_for(new, path)
        if path is None or value is None or (new.beside is None and self._is_doubtful(new)):
            return None
        self._used.add(path)
        self._slots.discard(path)
        self._by_name.pop(new.name, None)
        _logger.info("The new variable %r has its value from the checkpoint %s.", new.name, self._where)
        if not (self._slots or self._by_name):
            self._stop()
        return value

    def _value_for(self, new: NewVariable, path: str | None) -> np.ndarray | None:
        entry = self._entries.get(path or "")
        if path is None or entry is None or path in self._used or list(new.shape) != entry["shape"]:
            return None
        if entry["kind"] != "variable" or not _dtypes_fit(new.dtype, entry["dtype"]):
            return None
        return array_of(entry, path, self._content)

    def _is_doubtful(self, new: NewVariable) -> bool:
        """Whether another checkpoint waits for a variable of that name, with another value for it."""
        claims = [(other, other._value_for(new, other._by_name.get(new.name))) for other in _waiting]
        rivals = [(other, value) for other, value in claims if value is not None]
        if all(value.tobytes() == rivals[0][1].tobytes() for _, value in rivals[1:]):
            return False
        if rivals[0][0] is self:
            _logger.warning(
                "The new variable %r may be that of the checkpoint %s: it gets no value before it is "
                "found in its place. Make variables before restoring, or give them names of their own.",
                new.name,
                " or of ".join(other._where for other, _ in rivals),
            )
        return True

    def _path_of(self, new: NewVariable) -> str | None:
        """The place of a new variable in the checkpoint, if its neighbour has one."""
        for path, thing in track(self._checkpoint._objects()).items():
            if thing is new.beside:
                return f"{path.rpartition('/')[0]}/{new.path}"
        return None

    def _slots_to_come(self, now: Content) -> Content:
        """What optimizers will begin with that made no update yet: as much their state as slots are."""
        arrays: dict[str, np.ndarray] = {}
        entries: dict[str, Any] = {}
        for path in sorted(self._slots - set(now.document["entries"])):
            counter = f"{path.rpartition('/slots/')[0]}/iterations"
            if np.array_equal(now.arrays.get(counter, -1), self._content.arrays[counter]):
                entries[path] = self._entries[path]
                arrays |= {path: self._content.arrays[path]} if path in self._content.arrays else {}
        return Content(arrays, {"entries": entries})

    def _stop(self) -> None:
        """Give no values to variables made from now on."""
        self._slots, self._by_name = set(), {}
        if self._reference in awaiting_values:
            awaiting_values.remove(self._reference)
            _waiting.remove(self)

    def attach(self, root: str | None = None) -> None:
        """Restore what has come to a place of the checkpoint since.

        What has been written in the meantime keeps its value, and is reported; so does what can't tell:
        a number is what the user made it, and an iterator may have been read from. Except if it is in
        the object called `root`, which has just been given to the checkpoint.
        """
        things = track(self._checkpoint._objects())
        late = {path: things[path] for path in self._entries if path not in self._used and path in things}
        asked = {path: thing for path, thing in late.items() if path.partition("/")[0] == root}
        if asked:
            _check_fit(asked, self._entries, self._where)
        for path, thing in late.items():
            if path not in asked and (why := self._why_not(thing, self._entries[path])):
                self._leave(path, why)
                continue
            self._used.add(path)
            self._by_name = {name: other for name, other in self._by_name.items() if other != path}
            self._checkpoint._restore_one(path, thing, self._entries[path], self._content)
        if root is not None:
            self._wait_for_variables()

    def _why_not(self, thing: Any, entry: Mapping[str, Any]) -> str | None:
        """Why a thing that was not there when the checkpoint was restored keeps the state it has."""
        if (problem := _misfit(thing, entry)) is not None:
            return problem
        if isinstance(thing, Variable):
            return "was written before it could be restored" if thing.was_written else None
        return "was in use before it could be restored"

    def _leave(self, path: str, why: str) -> None:
        if path not in self._left:
            self._left[path] = why
            _logger.warning(
                "%s stays as it is, and not as in the checkpoint %s: it %s. Make it before restoring, or "
                "give it to the checkpoint by a name of its own.",
                path,
                self._where,
                why,
            )

    @property
    def unused(self) -> list[str]:
        """What the checkpoint has and nothing has got."""
        self.attach()
        return [path for path in self._entries if path not in self._used]

    def assert_consumed(self) -> RestoreStatus:
        """Raise `CheckpointMismatchError` unless everything matched, in both directions."""
        problems = self._problems(self.unused)
        if problems:
            raise CheckpointMismatchError(
                f"The checkpoint {self._where} was not restored completely: {problems}."
            )
        return self

    def _problems(self, unused: list[str]) -> str:
        problems = []
        if unused:
            lacking = [path for path in unused if path not in self._left]
            left = [f"{path}, which {self._left[path]}" for path in unused if path in self._left]
            problems += [f"the objects have no {_few(lacking)}"] if lacking else []
            problems += [f"not restored was {_few(left)}"] if left else []
        if self.missing:
            problems.append(f"it has no {_few(self.missing)}")
        return "; ".join(problems)

    def expect_partial(self) -> RestoreStatus:
        """Say that what did not match is left out on purpose.

        Variables made later get no values by their names; slots of the optimizers here still do.
        """
        self._is_partial, self._by_name = True, {}
        if not self._slots:
            self._stop()
        return self
