"""Keras callbacks that write files: of several workers, only the first one writes.

The workers usually share the folder and would all write to the same file. The others wait for the first
one, because they may read the file next, and because a worker that is still writing must not count as
stuck. Keras creates temporary variables while it saves. Only the first worker creates them, so they must
not be distributed: files are written outside of the strategy's scope.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

from replicax.checkpoint import on_first_process
from replicax.contexts import enter_default
from replicax.integrations.keras._models import strategy_of
from replicax.integrations.keras._run import running

__all__ = ["backing_up_once", "deciding_alike", "saving_once"]


def backing_up_once(method: Callable[..., None]) -> Callable[..., None]:
    """Make a method of `BackupAndRestore` write or delete its files in the first worker only."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        if _is_shared(self.model):
            self.model.jax_state_sync()
            on_first_process(str(self.backup_dir), lambda: _alone(method, self, *args, **kwargs))
        else:
            method(self, *args, **kwargs)

    return call


def saving_once(save_model: Callable[..., None]) -> Callable[..., None]:
    """Make `ModelCheckpoint` save in the first worker only; see also `deciding_alike`."""

    @functools.wraps(save_model)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        if not _is_shared(self.model):
            save_model(self, *args, **kwargs)
            return
        if not _is_first(self.model):
            save_model(self, *args, **kwargs)
        self.model.jax_state_sync()
        on_first_process(str(self.filepath), lambda: _alone(save_model, self, *args, **kwargs))

    return call


def deciding_alike(should_save: Callable[..., bool]) -> Callable[..., bool]:
    """Make `ModelCheckpoint` track the best model in all workers, though only the first one saves it."""

    @functools.wraps(should_save)
    def call(self: Any, *args: Any, **kwargs: Any) -> bool:
        decision = should_save(self, *args, **kwargs)
        return decision and (not _is_shared(self.model) or _is_first(self.model))

    return call


def _alone(method: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Call a method outside of any strategy and of the running `fit`, whose devices Keras would use."""

    def call() -> None:
        running.set(None)
        with enter_default():
            method(*args, **kwargs)

    contextvars.copy_context().run(call)


def _is_shared(model: Any) -> bool:
    """Whether other processes train the model, too."""
    strategy = strategy_of(model)
    return strategy is not None and not strategy.mesh.is_local


def _is_first(model: Any) -> bool:
    return strategy_of(model).extended.should_checkpoint
