"""`rx.CheckpointManager`: checkpoints saved in the background, the newest kept.

Values are copied to the host at once; writing happens in a thread that gets out of the way of the program.
One checkpoint is written at a time.
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
    """Saves a checkpoint every so often, in the background, and keeps the newest ones.

    Args:
        checkpoint: what to save.
        directory: a folder of its own.
        max_to_keep: how many checkpoints to keep; None keeps all.
        save_interval: `save(step)` does something only if `step` is a multiple of this.
        asynchronous: write in the background; False waits until a checkpoint is there.
        prefix: what the name of a checkpoint's folder has before its number, such as "ckpt-".

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
                f"CheckpointManager(max_to_keep={max_to_keep}): keep at least 1, or None."
            )
        if save_interval < 1:
            raise CheckpointError(f"CheckpointManager(save_interval={save_interval}): pass 1 or more.")
        if os.path.basename(prefix) != prefix:
            raise CheckpointError(
                f"CheckpointManager(prefix={prefix!r}): it begins a name, and can't be a folder. Put the "
                "folder into `directory`."
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
        """Save a checkpoint, if it is time for one.

        Values are copied now; writing goes on in the background, after any checkpoint that is still being
        written. An error of the background is raised by the next call of a method of the manager.

        Args:
            step: the number of the checkpoint; by default the one after the newest.
            force: save also if `step` is no multiple of the interval.

        Returns:
            Whether a checkpoint was saved.

        Raises:
            CheckpointError: this one can't be saved, or an earlier one could not be written.
        """
        if has_strategy() and not in_cross_replica_context():
            raise ContextError("CheckpointManager.save was called in a replica function. Call it outside.")
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
        """Restore the checkpoint of a number.

        Args:
            step: one of `checkpoints`.
        """
        self._writer.wait()
        return self._checkpoint.restore_content(self._store.load(step), str(self._store.path(step)))

    def restore_or_initialize(self) -> int | None:
        """Restore the newest checkpoint that can be read, if there is one.

        Returns:
            Its number; None if there are no checkpoints, and everything is as it was.

        Raises:
            CheckpointMismatchError: it is of other objects.
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
        """Wait until everything is written; raises what went wrong."""
        self._writer.wait()

    def close(self) -> None:
        """Wait, and end the background thread."""
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
    """Writes one checkpoint at a time, in a thread that lasts as long as that."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def write(self, step: int, content: Content) -> None:
        """Begin to write."""
        arguments = (step, content)
        self._thread = threading.Thread(target=self._run, args=arguments, name="replicax-checkpoint")
        self._thread.start()

    def _run(self, step: int, content: Content) -> None:
        _step_back()
        try:
            self._store.save(step, content)
        except BaseException as error:  # raised where somebody can see it
            self._error = error

    def wait(self) -> None:
        """Wait for the thread; raises what went wrong in it."""
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
        """Wait for the thread where nobody could catch an error: it is logged."""
        self.finish()
        if self._error is not None:
            _logger.error("%s", self._error)
            self._error = None


_writers: weakref.WeakSet[_Writer] = weakref.WeakSet()


def _finish_at_exit(writer: _Writer) -> None:
    """Let a checkpoint that is being written when the program ends be written to its end.

    Orbax needs thread pools for that, which Python closes before anything that `atexit` knows; hence a hook
    of `threading`, after the import of the pools, whose own hook then comes later.
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


# As nice as leaves the writer a thirtieth of a processor that others want.
_NICE = 15


def _step_back() -> None:
    """Let this thread, those that it starts, and those of the library that writes, wait for others."""
    setpriority: Any = getattr(os, "setpriority", None)
    if setpriority is None:
        return
    for task in [threading.get_native_id(), *_library_threads()]:
        with contextlib.suppress(OSError):
            setpriority(os.PRIO_PROCESS, task, _NICE)


def _library_threads() -> list[int]:
    """The threads of tensorstore's pool, which others may have started; Linux only."""
    tasks = []
    with contextlib.suppress(OSError):
        for task in pathlib.Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                if (task / "comm").read_text().startswith("ts_pool_worker"):
                    tasks.append(int(task.name))
    return tasks
