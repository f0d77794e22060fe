"""`rx.CheckpointManager`: saves checkpoints in the background and deletes old ones.

Values are copied to the host at once. A thread with low priority writes them, one checkpoint at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import operator
import os
import pathlib
import threading
import weakref
from typing import Any, final

from replicax.checkpoint._checkpoint import Checkpoint
from replicax.checkpoint._content import Content
from replicax.checkpoint._status import RestoreStatus
from replicax.checkpoint._store import Store
from replicax.contexts import has_strategy, in_cross_replica_context
from replicax.errors import CheckpointError, ContextError

__all__ = ["CheckpointManager"]

_logger = logging.getLogger("replicax")


@final
class CheckpointManager:
    """Saves checkpoints in the background, and keeps the newest ones.

    Only checkpoints that a manager has written are ever deleted. Several processes may open one folder: an
    evaluator does not disturb the trainer that writes there.

    Args:
        checkpoint: what to save.
        directory: the folder; created by the first save.
        max_to_keep: how many checkpoints to keep; None keeps all.
        save_interval: `save(step)` saves only if `step` is a multiple of this.
        asynchronous: write in the background; False waits until a checkpoint is complete.
        prefix: what precedes the number in the name of a checkpoint, such as "ckpt-".

    >>> import tempfile
    >>> w = rx.Variable(0.0)
    >>> checkpoint, folder = rx.Checkpoint(w=w), tempfile.mkdtemp()
    >>> manager = rx.CheckpointManager(checkpoint, folder, max_to_keep=2, save_interval=10)
    >>> for step in range(35):
    ...     _ = w.assign_add(1.0)
    ...     _ = manager.save(step)
    >>> manager.wait()
    >>> manager.checkpoints
    [20, 30]
    >>> _ = w.assign(0.0)
    >>> manager.restore_or_initialize()
    30
    >>> w.read_value()
    Array(31., dtype=float32)
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = 5,
        save_interval: int = 1,
        asynchronous: bool = True,
        prefix: str = "",
    ) -> None:
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(f"CheckpointManager takes an rx.Checkpoint first, got {checkpoint!r}.")
        if max_to_keep is not None and max_to_keep < 1:
            raise CheckpointError(
                f"CheckpointManager(max_to_keep={max_to_keep}): pass 1 or more, or None to keep all."
            )
        if save_interval < 1:
            raise CheckpointError(f"CheckpointManager(save_interval={save_interval}): pass 1 or more.")
        if os.path.basename(prefix) != prefix:
            raise CheckpointError(
                f"CheckpointManager(prefix={prefix!r}): the prefix is the beginning of a name, not a "
                "folder. Put the folder into `directory`."
            )
        self._checkpoint = checkpoint
        self._store = Store(directory, max_to_keep, prefix, managed=True)
        self._interval = save_interval
        self._writer = _Writer(self._store)
        self._asynchronous = asynchronous
        self._saving = threading.Lock()
        self._unreadable: set[int] = set()
        self._finalizer = weakref.finalize(self, self._writer.drop)
        _finish_at_exit(self._writer)

    def __repr__(self) -> str:
        return f"CheckpointManager({self._checkpoint!r}, {str(self._store.directory)!r})"

    @property
    def directory(self) -> str:
        """Where the checkpoints are."""
        return str(self._store.directory)

    @property
    def checkpoints(self) -> list[int]:
        """The numbers of the complete checkpoints, oldest first."""
        return self._store.steps()

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest complete checkpoint; None if there is none."""
        steps = self._store.steps()
        return str(self._store.path(steps[-1])) if steps else None

    def save(self, step: int | None = None, *, force: bool = False) -> bool:
        """Save a checkpoint, if `step` is a multiple of the interval.

        Values are copied now, and written in the background, after any checkpoint that is still being
        written. An error there is raised by the next call of one of the manager's methods.

        Args:
            step: the number of the checkpoint; by default the one after the newest.
            force: save also if `step` is not a multiple of the interval.

        Returns:
            Whether a checkpoint was saved.

        Raises:
            CheckpointError: there is such a checkpoint already, or an earlier one could not be written.
        """
        if has_strategy() and not in_cross_replica_context():
            raise ContextError(
                "CheckpointManager.save was called in a replica function. Call it outside `strategy.run`."
            )
        if step is not None:
            step = _checked_step(step)
            if not force and step % self._interval:
                return False
        with self._saving:
            self._writer.wait()
            steps = self._store.steps()
            number = self._store.next_step() if step is None else step
            if number in self._unreadable:
                self._store.set_aside(number)
            elif number in steps:
                raise CheckpointError(
                    f"There is a checkpoint {self._store.path(number)} already. Checkpoints are never "
                    "overwritten: continue with later steps, or use another directory."
                )
            self._writer.write(number, self._checkpoint.content())
            if not self._asynchronous:
                self._writer.wait()
        return True

    def restore(self, step: int) -> RestoreStatus:
        """Restore the checkpoint with a given number.

        Args:
            step: one of `checkpoints`.
        """
        self._writer.wait()
        return self._checkpoint.restore_content(self._store.load(step), str(self._store.path(step)))

    def restore_or_initialize(self) -> int | None:
        """Restore the newest checkpoint that can be read, if there is one.

        Returns:
            Its number; None if there are no checkpoints, and nothing was changed.

        Raises:
            CheckpointMismatchError: it does not fit the objects.
            CheckpointError: there are checkpoints, but none can be read.
        """
        self._writer.wait()
        failures = []
        for step in reversed(self._store.steps()):
            try:
                content = self._store.load(step)
            except CheckpointError as error:
                failures.append(str(error))
                self._unreadable.add(step)
                continue
            if failures:
                _logger.warning("%s Restoring the older checkpoint %d.", " ".join(failures), step)
            self._checkpoint.restore_content(content, str(self._store.path(step)))
            return step
        if failures:
            raise CheckpointError(f"None of the checkpoints can be read. {' '.join(failures)}")
        return None

    def wait(self) -> None:
        """Wait until everything is written; raises an error of the background."""
        self._writer.wait()

    def close(self) -> None:
        """Wait until everything is written; raises an error of the background."""
        self._finalizer.detach()
        self._writer.wait()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked_step(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if isinstance(step, bool) or number < 0:
        raise CheckpointError(f"CheckpointManager.save({step!r}): pass a step number, 0 or more.")
    return number


@final
class _Writer:
    """Writes one checkpoint at a time, each in a new thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def write(self, step: int, content: Content) -> None:
        """Start to write."""
        arguments = (step, content)
        self._thread = threading.Thread(target=self._run, args=arguments, name="replicax-checkpoint")
        self._thread.start()

    def _run(self, step: int, content: Content) -> None:
        _lower_priority()
        try:
            self._store.save(step, content)
        except BaseException as error:  # `wait` raises it in the caller's thread
            self._error = error

    def wait(self) -> None:
        """Wait for the thread, and raise its error."""
        self.finish()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait for the thread."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None

    def drop(self) -> None:
        """Wait for the thread, and log its error: at exit or in a finalizer, none could be caught."""
        self.finish()
        if self._error is not None:
            _logger.error("%s", self._error)
            self._error = None


_writers: weakref.WeakSet[_Writer] = weakref.WeakSet()


def _finish_at_exit(writer: _Writer) -> None:
    """Finish writing when the program ends.

    Orbax needs thread pools, which Python closes before it calls the functions of `atexit`. So this uses a
    hook of `threading`. Hooks are called in reverse order, hence the import of the pools first.
    """
    importlib.import_module("concurrent.futures.thread")
    if not _writers:
        register: Any = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(_drop_all)
    _writers.add(writer)


def _drop_all() -> None:
    for writer in list(_writers):
        writer.drop()


# Niceness 15: about 1/30 of a contended core.
_NICE = 15


def _lower_priority() -> None:
    """Lower the priority of this thread, of those that it starts, and of tensorstore's."""
    setpriority: Any = getattr(os, "setpriority", None)
    if setpriority is None:
        return
    for task in [threading.get_native_id(), *_library_threads()]:
        with contextlib.suppress(OSError):
            setpriority(os.PRIO_PROCESS, task, _NICE)


def _library_threads() -> list[int]:
    """The threads of tensorstore's pool, which another thread may have started; Linux only."""
    tasks = []
    with contextlib.suppress(OSError):
        for task in pathlib.Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                if (task / "comm").read_text().startswith("ts_pool_worker"):
                    tasks.append(int(task.name))
    return tasks
