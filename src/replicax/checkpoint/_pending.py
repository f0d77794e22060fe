"""A restored checkpoint and its pending values, for variables that do not exist yet.

A new variable is matched by its path, if that is known when the variable is created: a slot is next to its
optimizer's step counter, a Keras variable is in a layer. Otherwise it is matched by its name, if that is
unambiguous. All other variables are restored when they are later found under their path, unless they have
been written by then.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._recording import is_transforming
from replicax.checkpoint._content import Content, DeferredArray
from replicax.checkpoint._entries import array_of, check_fit, dtypes_fit, find_mismatch, shorten, sizes_of
from replicax.checkpoint._saved import Saved
from replicax.checkpoint._tracking import path_of, track, unbuilt, with_saved_names
from replicax.contexts import current
from replicax.variables import NewVariable, Variable, awaiting_values

if TYPE_CHECKING:
    from replicax.checkpoint._checkpoint import Checkpoint

__all__ = ["Restored", "restore_pending"]

_logger = logging.getLogger("replicax")

_waiting: list[Restored] = []
"""Restored checkpoints with pending values; their `Checkpoint` may have been garbage-collected."""


@final
class Restored:
    """What was restored from one checkpoint, and what is pending.

    Args:
        checkpoint: the `Checkpoint` with the objects that were restored.
        saved: the checkpoint on disk.
        where: its path, for messages.
        missing: the paths of objects that exist here but were not saved.
    """

    def __init__(self, checkpoint: Checkpoint, saved: Saved, where: str, missing: list[str]) -> None:
        self._checkpoint, self.where, self.missing = checkpoint, where, missing
        self._saved = saved
        self.entries: Mapping[str, Any] = saved.document["entries"]
        self._used = set(self._things()) & set(self.entries)
        self.kept: dict[str, str] = {}
        """Path -> why an object that was created later keeps its own state."""
        self.is_partial = False
        self._slots: set[str] = set()
        self._placed: set[str] = set()
        self._by_name: dict[str, str] = {}
        self._combined: set[str] = set()
        self.was_reported = False
        """Whether the mismatches have been logged, raised or accepted."""
        self._were_unclaimed_reported = False
        self._reference = weakref.WeakMethod(self._give)
        self._wait_for_variables()
        self._report = self._describe()

    def _things(self) -> dict[str, Any]:
        objects = self._checkpoint._objects()
        return with_saved_names(track(objects), objects, self.entries)

    def _loaded(self, path: str) -> Content:
        return self._saved.load(sizes_of(path, self.entries[path]))

    # Variables that do not exist yet.

    @property
    def _pending(self) -> set[str]:
        return (self._slots | self._placed | self._combined | set(self._by_name.values())) - self._used

    def _wait_for_variables(self) -> None:
        """Listen for new variables, if any values are pending."""
        self._find_pending()
        if self._pending and self._reference not in awaiting_values:
            awaiting_values.append(self._reference)
            _waiting.append(self)

    def _find_pending(self) -> None:
        roots = self._checkpoint._objects()
        owners = unbuilt(roots)
        names: dict[str, list[str]] = {}
        self._slots, self._placed, self._by_name = set(), set(), {}
        for path, entry in self.entries.items():
            if entry["kind"] != "variable" or path in self._used:
                continue
            owner, is_slot, _ = path.rpartition("/slots/")
            if is_slot and f"{owner}/iterations" in self._used:
                self._slots.add(path)
            elif any(path.startswith(f"{owner}/") for owner in owners):
                self._placed.add(path)
            elif path.partition("/")[0] in roots and not self.is_partial:
                names.setdefault(entry["name"], []).append(path)
        names.pop("Variable:0", None)  # the default name
        # Variables with the same name can't be told apart until they have a path.
        self._by_name = {name: paths[0] for name, paths in names.items() if len(paths) == 1}

    def _give(self, new: NewVariable) -> np.ndarray | None:
        """The initial value for a variable that is being created, if the checkpoint has one pending."""
        path = self._by_name.get(new.name) if new.beside is None else self._place_of(new)
        value = self._value_for(new, path)
        if path is None or value is None or (new.beside is None and self._is_ambiguous(new)):
            return None
        if "parts" in self.entries[path]:
            self._combined.add(path)  # `attach` restores the parts
        else:
            self._claim(path)
        _logger.info("The new variable %r got its value from the checkpoint %s.", new.name, self.where)
        self._stop_if_done()
        return value

    def _place_of(self, new: NewVariable) -> str | None:
        """The path of a new variable, if the path of its sibling or its owner is known."""
        path = path_of(new.beside, self._checkpoint._objects())
        if path is None:
            return None
        return f"{path.rpartition('/')[0] if isinstance(new.beside, Variable) else path}/{new.path}"

    def _value_for(self, new: NewVariable, path: str | None) -> np.ndarray | None:
        entry = self.entries.get(path or "")
        if path is None or entry is None or path in self._used or list(new.shape) != entry["shape"]:
            return None
        if entry["kind"] != "variable" or not dtypes_fit(new.dtype, entry["dtype"]):
            return None
        return None if entry.get("aggregation") == "NONE" else array_of(entry, path, self._loaded(path))

    def _is_ambiguous(self, new: NewVariable) -> bool:
        """Whether another restored checkpoint has a different value under the same name."""
        claims = [(other, other._value_for(new, other._by_name.get(new.name))) for other in _waiting]
        rivals = [(other, value) for other, value in claims if value is not None]
        if all(value.tobytes() == rivals[0][1].tobytes() for _, value in rivals[1:]):
            return False
        if rivals[0][0] is self:
            _logger.warning(
                "The name of the new variable %r is in several checkpoints, %s, so it is not restored yet. "
                "Create variables before restoring, or give them unique names.",
                new.name,
                " and ".join(other.where for other, _ in rivals),
            )
        return True

    def _claim(self, path: str) -> None:
        self._used.add(path)
        self._combined.discard(path)
        self._saved.drop(sizes_of(path, self.entries[path]))

    def _stop_if_done(self) -> None:
        if not self._pending:
            self.stop()

    def stop(self) -> None:
        """Stop restoring new variables."""
        self._slots, self._placed, self._by_name = set(), set(), {}
        if self._reference in awaiting_values:
            awaiting_values.remove(self._reference)
            _waiting.remove(self)

    def expect_partial(self) -> None:
        """Report no mismatches, and match no new variables by name."""
        self.is_partial, self._by_name = True, {}
        self._stop_if_done()

    # Variables that exist now.

    def attach(self, root: str | None = None) -> None:
        """Restore objects that were created since the restore.

        Variables that have been written in the meantime keep their values and are reported, and so are
        iterators and numbers, which may be in use. Everything in the object called `root`, which was just
        added to the checkpoint, is restored.
        """
        things = self._things()
        late = {path: things[path] for path in self.entries if path not in self._used and path in things}
        asked = {path: thing for path, thing in late.items() if path.partition("/")[0] == root}
        if asked:
            check_fit(asked, self.entries, self.where)
        for path, thing in late.items():
            if path not in asked and (why := self._why_not(path, thing)):
                self._keep(path, why)
            else:
                self._checkpoint._restore_one(path, thing, self.entries[path], self._loaded(path))
                self._claim(path)
        if root is not None:
            self._wait_for_variables()
        self._stop_if_done()

    def _why_not(self, path: str, thing: Any) -> str | None:
        """Why an object that was created after the restore must keep its state; None if it need not."""
        if (problem := find_mismatch(thing, self.entries[path])) is not None:
            return problem
        if not isinstance(thing, Variable):
            return "was in use before it could be restored"
        if path in self._combined and thing.was_written:
            return (
                "was written before each replica could get its own part: all began with the combined value"
            )
        return "was written before it could be restored" if thing.was_written else None

    def _keep(self, path: str, why: str) -> None:
        if path not in self.kept:
            self.kept[path] = why
            _logger.warning(
                "%s keeps its state and is not restored from the checkpoint %s: it %s. Create it before "
                "restoring, or assign it to an attribute of the checkpoint.",
                path,
                self.where,
                why,
            )

    def pending_state(self, entries: Mapping[str, Any], arrays: Mapping[str, Any]) -> Content:
        """The pending values of objects that have yet to create their variables: the next save keeps them.

        Args:
            entries: the entries of the current objects.
            arrays: their arrays.
        """
        slots = [path for path in self._slots if self._is_unchanged(path, arrays)]
        owners = [f"{owner}/" for owner in unbuilt(self._checkpoint._objects())]
        placed = [path for path in self._placed if path.startswith(tuple(owners))]
        paths = sorted((set(slots) | set(placed)) - self._used - set(entries))
        found = {path: self.entries[path] for path in paths}
        sizes = {name: size for path in paths for name, size in sizes_of(path, found[path]).items()}
        return Content({name: self._later(name, size) for name, size in sizes.items()}, {"entries": found})

    def _later(self, name: str, size: int) -> Any:
        """A pending array: from memory, or read from the old checkpoint when the new one is written."""
        in_memory = self._saved.kept.get(name)
        if in_memory is not None:
            return in_memory
        return DeferredArray(size, lambda: self._saved.load([name]).arrays[name])

    def _is_unchanged(self, slot: str, arrays: Mapping[str, Any]) -> bool:
        """Whether the optimizer that owns a slot has made no step since the restore."""
        counter = f"{slot.rpartition('/slots/')[0]}/iterations"
        return np.array_equal(arrays.get(counter, -1), self._saved.load([counter]).arrays[counter])

    # Reporting.

    @property
    def unused(self) -> list[str]:
        """Saved values that no object has received."""
        self.attach()
        return [path for path in self.entries if path not in self._used]

    def _describe(self) -> str:
        """Describe what did not match, except for pending values."""
        return self.problems([path for path in self.unused if path not in self._pending])

    def problems(self, unused: list[str]) -> str:
        """Describe what did not match; empty if everything did."""
        problems = []
        lacking = [path for path in unused if path not in self.kept]
        kept = [f"{path}, which {self.kept[path]}" for path in unused if path in self.kept]
        problems += [f"the objects have no {shorten(lacking)}"] if lacking else []
        problems += [f"it did not restore {shorten(kept)}"] if kept else []
        problems += [f"the checkpoint has no {shorten(self.missing)}"] if self.missing else []
        return "; ".join(problems)

    def report(self) -> None:
        """Log what did not match, once."""
        if self.was_reported or self.is_partial:
            return
        self.was_reported = True
        if self._report:
            _logger.warning("The checkpoint %s was restored in part: %s.", self.where, self._report)
        if self._pending:
            names = shorten(sorted(self._pending))
            _logger.info(
                "The checkpoint %s has values for variables that do not exist yet: %s.", self.where, names
            )

    def report_unclaimed(self, saved_again: Mapping[str, Any]) -> None:
        """Log, once, which values no variable has claimed."""
        self.report()
        unclaimed = self._pending - set(self.kept) - set(saved_again)
        if unclaimed and not (self.is_partial or self._were_unclaimed_reported):
            self._were_unclaimed_reported = True
            _logger.warning(
                "No variable has claimed these values of the checkpoint %s: %s. Call `expect_partial()` on "
                "the result of `restore` if that is intended.",
                self.where,
                shorten(sorted(unclaimed)),
            )


def restore_pending() -> None:
    """Restore variables that were created since a restore, unless we are in a trace or a replica."""
    if current().replica is None and not is_transforming():
        for restored in list(_waiting):
            restored.attach()


@atexit.register
def _report_at_exit() -> None:
    for restored in list(_waiting):
        restored.report_unclaimed({})
