"""`rx.Checkpoint`: the state of a program, as values that do not depend on the strategy.

A variable is saved as one logical value: mirrored copies once, the parts of an ON_READ variable combined by
its aggregation. Restoring assigns that value, whatever strategy laid out the variable. So a checkpoint fits
any number of replicas and any strategy. On the same number of replicas, each gets its own part of an
ON_READ variable back.
"""

from __future__ import annotations

import copy
import logging
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from replicax._recording import is_transforming
from replicax.checkpoint._background import Writer
from replicax.checkpoint._content import Content, batches
from replicax.checkpoint._entries import (
    FORMATS,
    array_of,
    check_fit,
    check_overlap,
    few,
    format_of,
    kind_of,
    one_moment,
    packed,
    restore_variable,
    sizes_of,
    unpacked,
)
from replicax.checkpoint._pending import Restored
from replicax.checkpoint._saved import Saved
from replicax.checkpoint._status import RestoreStatus
from replicax.checkpoint._store import Store
from replicax.checkpoint._tracking import growing, left_out, track, with_saved_names
from replicax.checkpoint._verify import verify
from replicax.contexts import has_strategy, in_cross_replica_context
from replicax.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ContextError,
)
from replicax.values import is_number
from replicax.variables import Variable

__all__ = ["Checkpoint", "read_content"]

_logger = logging.getLogger("replicax")


class Checkpoint:
    """Saves and restores the state of objects.

    Args:
        **objects: what to save, by name: models, optimizers, metrics, iterators, structures of them.
            Objects are searched for variables in all their attributes. Arrays, random keys and numbers are
            saved, too; after a restore they are attributes of the checkpoint.

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
        self._restored: Restored | None = None
        self._told: set[str] = set()
        for name, value in objects.items():
            if name.startswith("_"):
                raise CheckpointError(
                    f"Checkpoint({name}=...): names can't begin with an underscore; choose another name."
                )
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"Checkpoint({', '.join(self._objects())})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Add an object. If a checkpoint was restored that has values for it, it gets them now."""
        if "/" in name or hasattr(type(self), name):
            raise CheckpointError(f"Checkpoint: an object can't be called {name!r}; choose another name.")
        super().__setattr__(name, value)
        if not name.startswith("_") and self._restored is not None and not is_number(value):
            self._restored.attach(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # copy and pickle ask before `__init__` ran
        raise AttributeError(f"{self!r} has no object called {name!r}.")

    def _objects(self) -> dict[str, Any]:
        return {name: thing for name, thing in vars(self).items() if not name.startswith("_")}

    # Saving.

    def save(self, directory: str | os.PathLike[str]) -> str:
        """Write a checkpoint into `directory`, with the next free number, and wait until it is complete.

        To save in the background and delete old checkpoints, use `rx.CheckpointManager`.

        Args:
            directory: a folder for checkpoints; created if it does not exist.

        Returns:
            The path of the checkpoint.

        Raises:
            CheckpointError: it could not be written.
        """
        return self._save_into(Store(directory), first=0)

    def _save_into(self, store: Store, *, first: int) -> str:
        _require_outside("save")
        step = store.meet(max(first, store.next_step(first)), is_given=False)
        self.write_now(Writer(store), step)
        return str(store.path(step))

    def write_now(self, writer: Writer, step: int, metrics: dict[str, float] | None = None) -> None:
        """Write a checkpoint and wait until it is complete.

        Values are copied piece by piece, so other threads can't access them while the checkpoint is
        written.
        """
        _require_outside("save")
        with one_moment(track(self._objects()).values(), may_take_long=True):
            writer.write_now(step, self.content(copy=False, metrics=metrics))

    def content(self, *, copy: bool = True, metrics: dict[str, float] | None = None) -> Content:
        """All values as a checkpoint would hold them now.

        Without `copy`, the values of large variables are copied to the host when they are written: no
        thread may change them until then.
        """
        _require_outside("save")
        if self._restored is not None:
            self._restored.attach()
        things = track(self._objects())
        with one_moment(things.values()):
            found = {path: packed(path, thing, copy) for path, thing in things.items()}
        entries = {path: one.entry for path, one in found.items()}
        arrays = {name: array for one in found.values() for name, array in one.arrays.items()}
        own = frozenset(name for one in found.values() for name in one.own)
        if self._restored is not None:
            pending = self._restored.pending_state(entries, arrays)
            arrays |= pending.arrays
            entries |= pending.document["entries"]
            self._restored.report_unclaimed(pending.document["entries"])
        self._tell_left_out(entries)
        document = {"format": format_of(entries), "entries": entries}
        return Content(arrays, document if metrics is None else document | {"metrics": metrics}, own)

    def checkpoint_items(self) -> dict[str, Any]:
        """The objects, for a checkpoint that this one is an object of."""
        return self._objects()

    def _tell_left_out(self, things: Mapping[str, Any]) -> None:
        """Warn, once for each object, about state that the user may expect to be saved and is not."""
        new = {name: thing for name, thing in self._objects().items() if name not in self._told}
        paths = left_out(new)
        found = {path.partition("/")[0] for path in (*things, *paths)}
        rest = [name for name in new if name not in found and not _is_empty(new[name])]
        stateless = [name for name in rest if not track({name: new[name]})]
        if stateless:
            self._told.update(stateless)
            _logger.warning(
                "%r saves nothing of %s, which have no variables, nor anything with `state()` and "
                "`restore(state)`.",
                self,
                few(stateless),
            )
        if paths:
            self._told |= {path.partition("/")[0] for path in paths}
            _logger.warning(
                "%r does not save %s: arrays and numbers in structures are left out. Make them variables "
                "(`rx.create_variables`), or pass each to the checkpoint by a name of its own.",
                self,
                few(paths),
            )

    # Restoring.

    def restore(self, path: str | os.PathLike[str]) -> RestoreStatus:
        """Restore the state of all objects.

        Nothing is changed unless everything that exists fits. Variables that do not exist yet get their
        values when they are created: slots of optimizers, variables of Keras models, and others whose names
        are not ambiguous. The rest are restored when `save` or the status finds them in their place, unless
        they have been written by then. Values that no variable claims are logged by the next save, or at
        exit.

        Args:
            path: the result of `save`, or a folder of checkpoints, whose newest one is restored.

        Returns:
            A `RestoreStatus`, which says what did not match.

        Raises:
            CheckpointMissingError: the checkpoint does not exist.
            CheckpointMismatchError: a shape, a dtype or a kind does not fit.
            CheckpointError: it can't be read.
        """
        _require_outside("restore")
        store, step = _located(path)
        return self.restore_saved(store.open(step), str(store.path(step)))

    def restore_content(self, content: Content, where: str) -> RestoreStatus:
        """Restore the state of all objects from `content`, which was read from `where`."""
        _require_outside("restore")
        return self.restore_saved(Saved.of(content), where)

    def restore_saved(self, saved: Saved, where: str) -> RestoreStatus:
        """Restore the state of all objects from a checkpoint."""
        if (found := saved.document.get("format")) not in FORMATS:
            raise CheckpointError(f"{where} has the format {found!r}; this version reads {list(FORMATS)}.")
        if self._restored is not None:
            self._restored.stop()
        self._restored = None
        entries: Mapping[str, Any] = saved.document["entries"]
        things = with_saved_names(track(self._objects()), self._objects(), entries)
        check_fit(things, entries, where)
        if not growing(self._objects()):
            check_overlap(things, entries, where)
        verify(saved, things, where)
        both = {path: thing for path, thing in things.items() if path in entries}
        states = {path: thing for path, thing in both.items() if kind_of(thing) == "state"}
        self._restore_states(states, saved.document)
        with one_moment(both.values()):
            self._restore_values({path: x for path, x in both.items() if path not in states}, saved)
        missing = [path for path in things if path not in entries]
        self._restored = Restored(self, saved, where, missing)
        return RestoreStatus(self._restored)

    def _restore_values(self, things: Mapping[str, Any], saved: Saved) -> None:
        """Restore variables, arrays and numbers, as many at a time as are read at a time."""
        entries = saved.document["entries"]
        needed = {path: sizes_of(path, entries[path], thing) for path, thing in things.items()}
        for paths in batches({path: sum(sizes.values()) for path, sizes in needed.items()}):
            names = [name for path in paths for name in needed[path]]
            content = saved.load(names)
            for path in paths:
                self._restore_one(path, things[path], entries[path], content)
            saved.drop(names)

    def _restore_states(self, things: Mapping[str, Any], document: dict[str, Any]) -> None:
        """Restore things that may refuse their states; if one does, undo it for the others."""
        content = Content({}, document)
        before = [(thing, copy.deepcopy(thing.state())) for thing in things.values()]
        for i, (path, thing) in enumerate(things.items()):
            try:
                self._restore_one(path, thing, document["entries"][path], content)
            except CheckpointMismatchError:
                for other, state in before[:i]:
                    other.restore(state)
                raise

    def _restore_one(self, path: str, thing: Any, entry: Any, content: Content) -> None:
        if isinstance(thing, Variable):
            restore_variable(thing, path, entry, content)
        elif entry["kind"] == "state":
            try:
                thing.restore(copy.deepcopy(entry["state"]))
            except Exception as error:
                raise CheckpointMismatchError(f"{path} could not be restored: {error}") from error
        else:
            setattr(self, path, unpacked(entry, path, content))


def read_content(path: str | os.PathLike[str]) -> Content:
    """What a checkpoint holds, or the newest one in a folder of checkpoints: whole values, in memory."""
    store, step = _located(path)
    saved = store.open(step)
    entries = saved.document["entries"]
    content = saved.load([name for path, entry in entries.items() for name in sizes_of(path, entry)])
    pieces = {path: entry for path, entry in entries.items() if "pieces" in entry}
    whole = {path: array_of(entry, path, content) for path, entry in pieces.items()}
    return Content(content.arrays | whole, content.document)


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
        there = f" There are {few(named)}; pass the path of one." if named else ""
        raise CheckpointMissingError(f"There is no numbered checkpoint in {folder}.{there}")
    return Store(folder.parent, prefix=number[1]), int(number[2])


def _require_outside(what: str) -> None:
    if has_strategy() and not in_cross_replica_context():
        raise ContextError(
            f"Checkpoint.{what} was called in a replica function, which runs once for each replica. Call "
            "it outside `strategy.run`."
        )
    if is_transforming():
        raise ContextError(
            f"Checkpoint.{what} was called while JAX traces a function, where variables have no values "
            "yet. Call it between steps."
        )


def _is_empty(thing: Any) -> bool:
    return thing is None or (isinstance(thing, dict | list | tuple) and not len(thing))
