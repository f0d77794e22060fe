"""`PreemptionWatcher`: tells a program that a process of its cluster is about to be preempted."""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import final

import jax

from replicax.cluster._messages import all_published, publish
from replicax.cluster._notices import Notices
from replicax.cluster._stopping_point import TOPIC

__all__ = ["PreemptionWatcher"]

_PERIOD_SECONDS = 0.2


@final
class PreemptionWatcher:
    """Records whether a process of the cluster has received SIGTERM, the notice of a preemption.

    It only watches; what to do is up to the program. To save a checkpoint and exit, use
    `rx.PreemptionCheckpointHandler`.

    >>> watcher = rx.PreemptionWatcher()
    >>> watcher.preemption_message is None
    True
    >>> import os, signal, time
    >>> os.kill(os.getpid(), signal.SIGTERM)
    >>> while watcher.preemption_message is None:
    ...     time.sleep(0.01)
    >>> watcher.preemption_message
    'Process 0 will be ended (SIGTERM)'
    >>> watcher.close()
    """

    def __init__(self) -> None:
        """Start watching. Call this in the main thread, after creating the strategy."""
        self._notices = Notices(None)
        self._message: str | None = None
        self._closed = False
        self._process, self._has_others = jax.process_index(), jax.process_count() > 1
        self._thread = threading.Thread(target=self._watch, name="replicax_preemption_watcher", daemon=True)
        self._thread.start()
        atexit.register(self._close, at_exit=True)

    @property
    def preemption_message(self) -> str | None:
        """Which process is being preempted, and how it was notified; None until one is."""
        return self._message

    def block_until_worker_exit(self) -> None:
        """Do nothing, as in TensorFlow on all platforms except TPUs with their own coordinator."""

    def close(self) -> None:
        """Stop watching and restore the previous SIGTERM handler."""
        self._close(at_exit=False)

    def _close(self, *, at_exit: bool) -> None:
        if not self._closed:
            atexit.unregister(self._close)
            self._closed = True
            self._notices.wake()
            self._thread.join()
            self._notices.close(at_exit=at_exit)

    def _watch(self) -> None:
        topic = f"{TOPIC}/watchers"
        while not self._closed and self._message is None:
            why = self._notices.wait(_PERIOD_SECONDS)
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator may have ended
                if why is not None:
                    self._message = f"Process {self._process} will be ended ({why})"
                    if self._has_others:
                        publish(topic, self._message)
                elif self._has_others:
                    self._message = next(iter(all_published(topic).values()), None)
