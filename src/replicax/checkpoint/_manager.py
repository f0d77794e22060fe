"""`rx.CheckpointManager`: saves checkpoints in the background and deletes old ones.

`save` copies the values to the host and returns. A low-priority thread writes them, one checkpoint at a
time.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

from replicax.checkpoint._background import Writer, finish_at_exit
from replicax.checkpoint._best import Best, validate_metrics
from replicax.checkpoint._checkpoint import Checkpoint
from replicax.checkpoint._saved import Saved
from replicax.checkpoint._status import RestoreStatus
from replicax.checkpoint._store import Store
from replicax.contexts import has_strategy, in_cross_replica_context
from replicax.errors import CheckpointError, ContextError

__all__ = ["CheckpointManager"]

_logger = logging.getLogger("replicax")


@final
class CheckpointManager:
    """Saves checkpoints in the background, and keeps the newest ones.

    It deletes only checkpoints that a manager has written. Several processes may open the same folder: an
    evaluator does not disturb the trainer that writes there.

    Args:
        checkpoint: what to save.
        directory: the folder; created by the first save.
        max_to_keep: how many checkpoints to keep; None keeps all.
        save_interval: `save(step)` saves only if `step` is a multiple of this.
        asynchronous: write in the background; with False, `save` returns when the checkpoint is complete.
        prefix: what precedes the number in the name of a checkpoint, such as "ckpt-".
        own_folders: workers may pass different directories, as programs for TensorFlow do. The first worker
            writes to its directory; those of the others are created but stay empty.
        best_fn: takes the metrics given to `save` and returns a number. The manager then keeps the best
            checkpoints instead of the newest ones, plus the very newest, to continue from.
        best_mode: whether the highest number is the best, "max", or the lowest, "min".

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
        own_folders: bool = False,
        best_fn: Callable[[dict[str, float]], float] | None = None,
        best_mode: Literal["max", "min"] = "max",
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
        if best_mode not in ("max", "min"):
            raise CheckpointError(f"CheckpointManager(best_mode={best_mode!r}): pass 'max' or 'min'.")
        self._checkpoint = checkpoint
        self._best = None if best_fn is None else Best(best_fn, best_mode)
        self._store = Store(directory, max_to_keep, prefix, True, own_folders, self._best)
        self._interval = save_interval
        self._writer = Writer(self._store)
        self._asynchronous = asynchronous
        self._saving = threading.Lock()
        self._unreadable: set[int] = set()
        self._finalizer = weakref.finalize(self, self._writer.drop)
        finish_at_exit(self._writer)

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

    @property
    def best_checkpoint(self) -> str | None:
        """The path of the best checkpoint by `best_fn`; None if none was saved with metrics.

        >>> import tempfile
        >>> w = rx.Variable(0.0)
        >>> manager = rx.CheckpointManager(
        ...     rx.Checkpoint(w=w), tempfile.mkdtemp(), 2, best_fn=lambda m: m["loss"], best_mode="min"
        ... )
        >>> for step, loss in enumerate([0.5, 0.1, 0.4, 0.9]):
        ...     _ = manager.save(step, metrics={"loss": loss})
        >>> manager.wait()
        >>> manager.checkpoints                               # the two best, and the newest
        [1, 2, 3]
        >>> manager.best_checkpoint == f"{manager.directory}/1"
        True
        """
        if self._best is None:
            raise CheckpointError(
                "CheckpointManager.best_checkpoint: pass best_fn=..., which takes the metrics given to "
                "`save`, when you create the manager."
            )
        step = self._store.best_step()
        return None if step is None else str(self._store.path(step))

    def save(
        self,
        step: int | None = None,
        *,
        force: bool = False,
        metrics: Mapping[str, float] | None = None,
    ) -> bool:
        """Save a checkpoint, if `step` is a multiple of the interval.

        Values are copied to the host before this returns, and written in the background once the previous
        checkpoint is complete. If writing fails, the next call of any of the manager's methods raises.

        Args:
            step: the number of the checkpoint; by default the one after the newest.
            force: save even if `step` is not a multiple of the interval.
            metrics: numbers to save with the checkpoint, for `best_fn`. A checkpoint without metrics is
                never among the best.

        Returns:
            Whether a checkpoint was saved.

        Raises:
            CheckpointError: the checkpoint already exists, or an earlier one could not be written.
        """
        if has_strategy() and not in_cross_replica_context():
            raise ContextError(
                "CheckpointManager.save was called in a replica function. Call it outside `strategy.run`."
            )
        if step is not None:
            step = _checked_step(step)
            if not force and step % self._interval:
                return False
        measured = None if metrics is None else validate_metrics(metrics, self._best)
        with self._saving:
            self._writer.wait()
            steps = self._store.steps()
            number = self._store.next_step() if step is None else step
            if number in self._unreadable:
                self._store.set_aside(number)
            elif number in steps:
                raise CheckpointError(
                    f"The checkpoint {self._store.path(number)} already exists. Checkpoints are never "
                    "overwritten: continue with later steps, or use another directory."
                )
            number = self._store.agree_on_step(number, is_given=step is not None)
            if self._asynchronous:
                self._writer.write(number, self._checkpoint.content(metrics=measured))
            else:
                self._checkpoint.write_now(self._writer, number, measured)
        return True

    def restore(self, step: int) -> RestoreStatus:
        """Restore the checkpoint with a given number.

        Args:
            step: one of `checkpoints`.
        """
        self._writer.wait()
        return self._checkpoint.restore_saved(self._store.open(step), str(self._store.path(step)))

    def restore_or_initialize(self) -> int | None:
        """Restore the newest checkpoint that can be read, if there is one.

        Returns:
            Its number; None if there is no checkpoint, and then nothing changes.

        Raises:
            CheckpointMismatchError: it does not match the objects.
            CheckpointError: there are checkpoints, but none can be read.
        """
        self._writer.wait()
        failures: dict[int, str] = {}
        steps = self._store.steps()
        while steps:
            step = steps.pop()
            saved: Saved | None = None
            try:
                saved = self._store.open(step)
                self._checkpoint.restore_saved(saved, str(self._store.path(step)))
            except CheckpointError as error:
                if saved is not None and not saved.is_damaged:
                    raise
                if self._store.path(step).is_dir():
                    failures[step] = str(error)
                else:  # another process has deleted it, so there must be a newer one
                    steps = [step for step in self._store.steps() if step not in failures]
                continue
            self._unreadable |= failures.keys()
            if failures:
                problems = " ".join(failures.values())
                _logger.warning("%s Restored the older checkpoint %d.", problems, step)
            return step
        self._unreadable |= failures.keys()
        if failures:
            raise CheckpointError(f"None of the checkpoints can be read. {' '.join(failures.values())}")
        return None

    def wait(self) -> None:
        """Wait until everything is written; raises if writing failed."""
        self._writer.wait()

    def close(self) -> None:
        """Wait until everything is written, as leaving a `with` block does; raises if writing failed."""
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
