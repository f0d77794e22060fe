"""What is known after a restore: what matched, and the values that wait for variables to come."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax.checkpoint._content import Content
from replicax.checkpoint._entries import array_of, check_fit, dtypes_fit, few, misfit
from replicax.checkpoint._tracking import track
from replicax.errors import CheckpointMismatchError
from replicax.variables import NewVariable, Variable, awaiting_values

if TYPE_CHECKING:
    from replicax.checkpoint._checkpoint import Checkpoint

__all__ = ["RestoreStatus"]

_logger = logging.getLogger("replicax")

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
            names = few(sorted(waiting))
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
        if entry["kind"] != "variable" or not dtypes_fit(new.dtype, entry["dtype"]):
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
            check_fit(asked, self._entries, self._where)
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
        if (problem := misfit(thing, entry)) is not None:
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
            problems += [f"the objects have no {few(lacking)}"] if lacking else []
            problems += [f"not restored was {few(left)}"] if left else []
        if self.missing:
            problems.append(f"it has no {few(self.missing)}")
        return "; ".join(problems)

    def expect_partial(self) -> RestoreStatus:
        """Say that what did not match is left out on purpose.

        Variables made later get no values by their names; slots of the optimizers here still do.
        """
        self._is_partial, self._by_name = True, {}
        if not self._slots:
            self._stop()
        return self
