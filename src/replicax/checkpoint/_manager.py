"""`rx.CheckpointManager`: checkpoints saved in the background, the newest kept.

Values are copied to the host at once; writing happens in a thread that gets out of the way of the program.
One checkpoint is written at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from typing import Any, final

from replicax.checkpoint._checkpoint import Checkpoint, RestoreStatus
from replicax.checkpoint._store import Content, Store
from replicax.errors import CheckpointError

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
    ) -> None:
        """Remove what a killed writer left in `directory`."""
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(f"CheckpointManager takes an rx.Checkpoint first, got {checkpoint!r}.")
        if max_to_keep is not None and max_to_keep < 1:
            raise CheckpointError(
                f"CheckpointManager(max_to_keep={max_to_keep}): keep at least 1, or None."
            )
        if save_interval < 1:
            raise CheckpointError(f"CheckpointManager(save_interval={save_interval}): pass 1 or more.")
        self._checkpoint = checkpoint
        self._store = Store(directory, max_to_keep)
        self._interval = save_interval
        self._writer = _Writer(self._store)
        self._asynchronous = asynchronous
        self._store.clean()
        self._finalizer = weakref.finalize(self, self._writer.finish)

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
        newest = max([*self._store.steps(), *self._writer.pending()], default=-1)
        if step is None:
            step = newest + 1
        elif not force and step % self._interval:
            return False
        if isinstance(step, bool) or step < 0:
            raise CheckpointError(f"CheckpointManager.save({step!r}): pass a number that is not negative.")
        if step in self._store.steps():
            raise CheckpointError(
                f"There is a checkpoint {self._store.path(step)} already. Checkpoints are never "
                "overwritten: continue with later steps, or use another directory."
            )
        self._writer.wait()
        self._writer.write(step, self._checkpoint.content())
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


@final
class _Writer:
    """Writes one checkpoint at a time, in a thread that lasts as long as that."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._step: int | None = None
        self._error: BaseException | None = None

    def pending(self) -> list[int]:
        """The checkpoint that is being written."""
        return [] if self._step is None else [self._step]

    def write(self, step: int, content: Content) -> None:
        """Begin to write."""
        self._step = step
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
            self._thread, self._step = None, None


def _step_back() -> None:
    """Let this thread, and those that it starts, run when nobody else wants the processor."""
    setpriority: Any = getattr(os, "setpriority", None)
    if setpriority is not None:
        with contextlib.suppress(OSError):
            setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
