"""`rx.Checkpoint`: a program's state, saved independently of the strategy.

A variable is saved as one logical value: mirrored copies once, the parts of an ON_READ variable combined by
its aggregation. Restoring assigns that value under whatever strategy created the variable, so a checkpoint
fits any strategy and any number of replicas. If the number of replicas is the same, each also gets its own
part of an ON_READ variable back.
"""

from __future__ import annotations

import copy
import logging
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Never

from replicax._recording import is_transforming
from replicax.checkpoint._background import Writer
from replicax.checkpoint._content import Content, batches
from replicax.checkpoint._entries import (
    FORMATS,
    array_of,
    check_fit,
    check_overlap,
    format_of,
    kind_of,
    locked,
    pack,
    restore_variable,
    shorten,
    sizes_of,
    unpack,
)
from replicax.checkpoint._pending import Restored
from replicax.checkpoint._saved import Saved
from replicax.checkpoint._status import RestoreStatus
from replicax.checkpoint._store import Store
from replicax.checkpoint._tracking import skipped_numbers, track, unbuilt, with_saved_names
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
        *unnamed: not allowed: objects are saved under their names, `rx.Checkpoint(model=model)`.
        **objects: what to save, by name: models, optimizers, metrics, iterators, or structures of them.
            All attributes of an object are searched for variables. Arrays, random keys and numbers are
            saved, too; read them as attributes of the checkpoint after a restore.

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

    def __init__(self, *unnamed: Never, **objects: Any) -> None:
        if unnamed:
            raise TypeError(
                "Checkpoint takes its objects by name, under which they are saved: "
                "`rx.Checkpoint(model=model, optimizer=optimizer)`."
            )
        self._restored: Restored | None = None
        self._warned: set[str] = set()
        for name, value in objects.items():
            if name.startswith("_"):
                raise CheckpointError(
                    f"Checkpoint({name}=...): names can't begin with an underscore; choose another name."
                )
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"Checkpoint({', '.join(self._objects())})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Add an object, and restore it if a restored checkpoint has values for it."""
        if "/" in name or hasattr(type(self), name):
            raise CheckpointError(f"Checkpoint: an object can't be called {name!r}; choose another name.")
        super().__setattr__(name, value)
        if not name.startswith("_") and self._restored is not None and not is_number(value):
            self._restored.attach(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # copy and pickle look attributes up before `__init__` has run
        raise AttributeError(f"{self!r} has no object called {name!r}.")

    def _objects(self) -> dict[str, Any]:
        return {name: thing for name, thing in vars(self).items() if not name.startswith("_")}

    # Saving.

    def save(self, directory: str | os.PathLike[str]) -> str:
        """Write a checkpoint to `directory` under the next free number, and wait until it is complete.

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
        step = store.agree_on_step(max(first, store.next_step(first)), is_given=False)
        self.write_now(Writer(store), step)
        return str(store.path(step))

    def write_now(self, writer: Writer, step: int, metrics: dict[str, float] | None = None) -> None:
        """Write a checkpoint and wait until it is complete.

        Values are copied to the host piece by piece, so the variables stay locked until the checkpoint is
        written.
        """
        _require_outside("save")
        with locked(track(self._objects()).values(), may_take_long=True):
            writer.write_now(step, self.content(copy=False, metrics=metrics))

    def content(self, *, copy: bool = True, metrics: dict[str, float] | None = None) -> Content:
        """The state of all objects, ready to be written.

        Without `copy`, large variables are copied to the host only when they are written; no thread may
        change them until then.
        """
        _require_outside("save")
        if self._restored is not None:
            self._restored.attach()
        things = track(self._objects())
        with locked(things.values()):
            found = {path: pack(path, thing, copy) for path, thing in things.items()}
        entries = {path: one.entry for path, one in found.items()}
        arrays = {name: array for one in found.values() for name, array in one.arrays.items()}
        own = frozenset(name for one in found.values() for name in one.own)
        if self._restored is not None:
            pending = self._restored.pending_state(entries, arrays)
            arrays |= pending.arrays
            entries |= pending.document["entries"]
            self._restored.report_unclaimed(pending.document["entries"])
        self._warn_unsaved(entries)
        document = {"format": format_of(entries), "entries": entries}
        return Content(arrays, document if metrics is None else document | {"metrics": metrics}, own)

    def checkpoint_items(self) -> dict[str, Any]:
        """The objects, for another checkpoint that contains this one."""
        return self._objects()

    def _warn_unsaved(self, things: Mapping[str, Any]) -> None:
        """Warn, once for each object, about state that a user would expect to be saved but isn't."""
        new = {name: thing for name, thing in self._objects().items() if name not in self._warned}
        paths = skipped_numbers(new)
        found = {path.partition("/")[0] for path in (*things, *paths)}
        rest = [name for name in new if name not in found and not _is_empty(new[name])]
        stateless = [name for name in rest if not track({name: new[name]})]
        if stateless:
            self._warned.update(stateless)
            _logger.warning(
                "%r saves nothing of %s: it found no variables there, and nothing with `state()` and "
                "`restore(state)`.",
                self,
                shorten(stateless),
            )
        if paths:
            self._warned |= {path.partition("/")[0] for path in paths}
            _logger.warning(
                "%r does not save %s: arrays and numbers inside structures are skipped. Make them "
                "variables (`rx.create_variables`), or pass each to the checkpoint under its own name.",
                self,
                shorten(paths),
            )

    # Restoring.

    def restore(self, path: str | os.PathLike[str]) -> RestoreStatus:
        """Restore the state of all objects.

        It is all or nothing: if any existing object does not match, nothing changes. Variables that do not
        exist yet get their values when they are created: optimizer slots, variables of Keras models, and
        others with an unambiguous name. The rest are restored when the next `save` or a method of the
        status finds them, unless they have been written by then. Values that no variable claims are logged
        by the next save, or at exit.

        Args:
            path: what `save` returned, or a folder of checkpoints, for the newest one in it.

        Returns:
            A `RestoreStatus`, which reports what did not match.

        Raises:
            CheckpointMissingError: the checkpoint does not exist.
            CheckpointMismatchError: the shape, dtype or kind of an object does not match.
            CheckpointError: the checkpoint can't be read.
        """
        _require_outside("restore")
        store, step = _locate(path)
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
        if not unbuilt(self._objects()):
            check_overlap(things, entries, where)
        verify(saved, things, where)
        both = {path: thing for path, thing in things.items() if path in entries}
        states = {path: thing for path, thing in both.items() if kind_of(thing) == "state"}
        self._restore_states(states, saved.document)
        with locked(both.values()):
            self._restore_values({path: x for path, x in both.items() if path not in states}, saved)
        missing = [path for path in things if path not in entries]
        self._restored = Restored(self, saved, where, missing)
        return RestoreStatus(self._restored)

    def _restore_values(self, things: Mapping[str, Any], saved: Saved) -> None:
        """Restore variables, arrays and numbers batch by batch, to bound the memory that this takes."""
        entries = saved.document["entries"]
        needed = {path: sizes_of(path, entries[path], thing) for path, thing in things.items()}
        for paths in batches({path: sum(sizes.values()) for path, sizes in needed.items()}):
            names = [name for path in paths for name in needed[path]]
            content = saved.load(names)
            for path in paths:
                self._restore_one(path, things[path], entries[path], content)
            saved.drop(names)

    def _restore_states(self, things: Mapping[str, Any], document: dict[str, Any]) -> None:
        """Restore objects with `restore(state)`; if one rejects its state, roll the others back."""
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
            setattr(self, path, unpack(entry, path, content))


def read_content(path: str | os.PathLike[str]) -> Content:
    """Read a checkpoint, or the newest one in a folder, into memory, with every value whole."""
    store, step = _locate(path)
    saved = store.open(step)
    entries = saved.document["entries"]
    content = saved.load([name for path, entry in entries.items() for name in sizes_of(path, entry)])
    pieces = {path: entry for path, entry in entries.items() if "pieces" in entry}
    whole = {path: array_of(entry, path, content) for path, entry in pieces.items()}
    return Content(content.arrays | whole, content.document)


def _locate(path: str | os.PathLike[str] | None) -> tuple[Store, int]:
    if path is None:  # `manager.latest_checkpoint` or `best_checkpoint` of a manager that has saved nothing
        raise CheckpointMissingError(
            "restore(None): there is no checkpoint yet. To start from the newest one if it exists, call "
            "`manager.restore_or_initialize()`. A best checkpoint needs `save(step, metrics=...)`."
        )
    folder = pathlib.Path(path).absolute()
    store = Store(folder)
    steps = store.steps()
    if steps:
        return store, steps[-1]
    named = store.others()
    is_folder = folder.is_dir() and (bool(named) or not any(folder.iterdir()))
    number = re.fullmatch(r"(.*?)(0|[1-9]\d*)", folder.name)
    if number is None or is_folder:
        there = f" There are {shorten(named)}; pass the path of one." if named else ""
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
            f"Checkpoint.{what} was called while JAX traces a function, where variables have no concrete "
            "values. Call it between steps."
        )


def _is_empty(thing: Any) -> bool:
    return thing is None or (isinstance(thing, dict | list | tuple) and not len(thing))
