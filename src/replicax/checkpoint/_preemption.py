"""`PreemptionCheckpointHandler`: saves a checkpoint when a process is about to be preempted.

Cloud machines are often preempted with some seconds or minutes of notice. All processes then stop at the
same step (`cluster/_stopping_point.py`), save one checkpoint together and exit. The next run continues
there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, Protocol, TypeVar, final, runtime_checkable

import jax

from replicax.checkpoint._checkpoint import Checkpoint
from replicax.checkpoint._manager import CheckpointManager
from replicax.cluster import ClusterResolver, StoppingPoint
from replicax.errors import CheckpointError

__all__ = ["PreemptionCheckpointHandler", "TerminationConfig"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_logger = logging.getLogger("replicax")


@final
@dataclasses.dataclass(frozen=True)
class TerminationConfig:
    """How a `PreemptionCheckpointHandler` learns of a preemption, and what it does then.

    Args:
        termination_watcher_fn: called about once a second; returns whether this process is about to be
            preempted. By default the notice is SIGTERM.
        exit_fn: called in every process when the checkpoint is complete. By default the process exits with
            status 0. If `exit_fn` returns, the program continues.
        grace_period: the seconds between the notice and the preemption. Training continues for part of that
            time; by default it stops at once.
        save_fn: saves the checkpoint, in every process. By default the manager saves it under the number
            after the newest checkpoint. Pass a function if your program numbers checkpoints by step.

    Raises:
        ValueError: the grace period is negative.

    >>> import sys
    >>> config = rx.TerminationConfig(exit_fn=lambda: sys.exit(75), grace_period=120)
    >>> config.grace_period
    120
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], Any] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise TypeError(f"TerminationConfig({name}={value!r}): pass a function.")
        if self.grace_period is not None and not self.grace_period >= 0:
            raise ValueError(
                f"TerminationConfig(grace_period={self.grace_period!r}): pass a number of seconds, 0 or "
                "more."
            )


@runtime_checkable
class Manager(Protocol):
    """A checkpoint manager of Replicax or of `replicax.tf`."""

    @property
    def directory(self) -> str:
        """Where the checkpoints are."""
        ...

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint."""
        ...

    def restore_or_initialize(self) -> Any:
        """Restore the newest checkpoint, if there is one."""
        ...


@final
class PreemptionCheckpointHandler:
    """Saves a checkpoint and exits when any process is about to be preempted; restores it on restart.

    Creating the handler restores the newest checkpoint. From then on SIGTERM no longer kills the process.
    When one process receives it, all processes continue to the same step, save one checkpoint there and
    exit with status 0.

    Call `save_checkpoint_if_preempted` at the end of each step, or let `run` call the steps, the same
    number of times in every process. Do the same in an evaluation loop that takes long.

    Args:
        cluster_resolver: the cluster's resolver, `strategy.cluster_resolver`; None for one process.
        checkpoint_or_checkpoint_manager: what to save.
        checkpoint_dir: where to save a `Checkpoint`; only the newest one is kept. A manager has its own
            folder.
        termination_config: how notices arrive, and how to save and exit.

    Raises:
        CheckpointError: no folder was given, or it is not the manager's.

    >>> import os, signal, tempfile
    >>> step = rx.Variable(0)
    >>> handler = rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), tempfile.mkdtemp())
    >>> try:
    ...     for i in range(100_000_000):
    ...         _ = step.assign_add(1)
    ...         if i == 3:
    ...             os.kill(os.getpid(), signal.SIGTERM)
    ...         handler.save_checkpoint_if_preempted()
    ... except SystemExit as error:
    ...     print("exit status", error.code)
    exit status 0
    >>> handler.close()
    >>> stopped_at = int(step.read_value())
    >>> _ = step.assign(0)
    >>> again = rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), handler.checkpoint_dir)
    >>> int(step.read_value()) == stopped_at
    True
    >>> again.close()
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None,
        checkpoint_or_checkpoint_manager: Checkpoint | Manager,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        if cluster_resolver is not None and not isinstance(cluster_resolver, ClusterResolver):
            raise TypeError(
                "PreemptionCheckpointHandler takes a cluster resolver first, `strategy.cluster_resolver`, "
                f"or None for one process; got {cluster_resolver!r}."
            )
        self._config = termination_config or TerminationConfig()
        self._manager = _manager(checkpoint_or_checkpoint_manager, checkpoint_dir)
        self._manager.restore_or_initialize()
        self._count = pathlib.Path(self.checkpoint_dir, "total_run_calls.json")
        self._runs = self._earlier_runs()
        self._slowest_step = self._save_seconds = 0.0
        self._last_point: float | None = None
        self._stop = StoppingPoint(self._config.termination_watcher_fn, self._delay)

    @property
    def checkpoint_dir(self) -> str:
        """Where the checkpoints are."""
        return self._manager.directory

    def _earlier_runs(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(json.loads(self._count.read_text()))
        return 0

    @property
    def total_run_calls(self) -> int:
        """How often `run` was called, including the calls before earlier preemptions."""
        return self._runs

    @property
    def preemption_message(self) -> str | None:
        """Which process is being preempted, and how it was notified; None until one is."""
        return self._stop.message

    def run(self, distributed_train_function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a training step; first save a checkpoint and exit if a process is being preempted.

        Take batches inside the function, from an iterator that is part of the checkpoint. A batch taken
        before the call would be lost on restart; in such loops, call `save_checkpoint_if_preempted` at the
        end of the loop body instead.

        Args:
            distributed_train_function: the step.
            *args: its positional arguments.
            **kwargs: its keyword arguments.

        Returns:
            What the step returned.
        """
        self.save_checkpoint_if_preempted()
        result = distributed_train_function(*args, **kwargs)
        self._runs += 1
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Save a checkpoint and exit if a process is being preempted.

        Every process must call this the same number of times.

        Args:
            *args: passed to `save` of the manager, or to `save_fn`.
            **kwargs: passed in the same way.
        """
        now = time.monotonic()
        if self._last_point is not None:
            self._slowest_step = max(self._slowest_step, now - self._last_point)
        if self._stop.reached():
            self._save(args, kwargs)
            self._exit()
        self._last_point = now

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """A `with` block that calls `save_checkpoint_if_preempted` at its end.

        Every process must enter it the same number of times.
        """
        yield
        self.save_checkpoint_if_preempted()

    def _save(self, args: Any, kwargs: Any) -> None:
        _logger.warning("%s. Saving a checkpoint in %s.", self._stop.message, self.checkpoint_dir)
        began = time.monotonic()
        if self._config.save_fn is not None:
            self._config.save_fn(*args, **kwargs)
        else:
            self._manager.save(*args, **kwargs)
        if isinstance(self._manager, CheckpointManager):
            self._manager.wait()
        if jax.process_index() == 0:
            self._count.write_text(json.dumps(self._runs))
        self._save_seconds = time.monotonic() - began

    def _exit(self) -> None:
        if self._config.exit_fn is None:
            sys.exit(0)
        self._config.exit_fn()
        self._stop.resume()

    def _delay(self, seconds: float) -> float:
        """How much longer to train, `seconds` after the notice; a third of the time is left for saving."""
        grace = self._config.grace_period or 0.0
        reserve = max(grace / 3, 2 * (self._slowest_step + self._save_seconds))
        return grace - reserve - seconds

    def close(self) -> None:
        """Stop watching for preemption and restore the previous SIGTERM handler."""
        self._stop.close()

    def __enter__(self) -> PreemptionCheckpointHandler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _manager(target: Any, directory: str | os.PathLike[str] | None) -> Manager:
    if isinstance(target, Checkpoint):
        if directory is None:
            raise CheckpointError(
                "PreemptionCheckpointHandler got a Checkpoint and no checkpoint_dir. Pass the folder to "
                "save in and restore from, or a CheckpointManager, which has one."
            )
        return CheckpointManager(target, directory, max_to_keep=1, asynchronous=False)
    if inspect.isclass(target) or not isinstance(target, Manager):
        raise TypeError(
            f"PreemptionCheckpointHandler takes a Checkpoint or a CheckpointManager second, got {target!r}."
        )
    if directory is not None and os.path.abspath(directory) != os.path.abspath(target.directory):
        raise CheckpointError(
            f"PreemptionCheckpointHandler(checkpoint_dir={os.fspath(directory)!r}): the manager saves in "
            f"{target.directory}. Leave out checkpoint_dir."
        )
    return target
