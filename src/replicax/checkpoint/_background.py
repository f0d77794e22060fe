"""Writes checkpoints in a separate thread, so that training goes on and Ctrl-C can't cut a write short."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import pathlib
import threading
import weakref
from typing import Any, final

from replicax.checkpoint._content import Content
from replicax.checkpoint._store import Store

__all__ = ["Writer", "finish_at_exit"]

_logger = logging.getLogger("replicax")


@final
class _Task:
    """A task whose `wait` may be interrupted (Ctrl-C) and called again.

    `Thread.join` can't be: after an interrupt Python believes that the thread has ended. Neither can a
    `Future`: an exception inside its `Condition` leaves the lock in the wrong state.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._is_done = False
        self._claimed, self._wake = threading.Lock(), threading.Lock()
        self._wake.acquire()

    def claim(self) -> bool:
        """Try to become the one caller that may run or cancel the task; returns whether that worked."""
        return self._claimed.acquire(blocking=False)

    def finish(self, error: BaseException | None = None) -> None:
        self.error, self._is_done = error, True
        self._wake.release()

    def wait(self) -> None:
        while not self._is_done:
            self._wake.acquire(timeout=0.05)  # an interrupted wait may have taken the only release


@final
class Writer:
    """Writes one checkpoint at a time, each in a new thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._task: _Task | None = None

    def write_now(self, step: int, content: Content) -> None:
        """Write, and wait until the checkpoint is complete.

        This uses a thread, too: signal handlers raise only in the main thread, so they can't interrupt
        Orbax. Their exception is raised once the checkpoint is complete.
        """
        try:
            self.write(step, content, nice=False)
            self.wait()
        except BaseException:
            self._finish()
            raise

    def write(self, step: int, content: Content, *, nice: bool = True) -> None:
        """Start writing in the background; with `nice`, at low priority."""
        task = _Task()
        arguments = (task, step, content, nice)
        thread = threading.Thread(target=self._run, args=arguments, name="replicax-checkpoint")
        try:
            self._thread, self._task = thread, task
            thread.start()
        except BaseException:
            if task.claim():  # the thread has not begun to write, and now it won't
                task.finish()
            raise

    def _run(self, task: _Task, step: int, content: Content, nice: bool) -> None:
        if not task.claim():
            return
        try:
            if nice:
                _lower_priority()
            self._store.save(step, content)
        except BaseException as error:  # `wait` raises it in the caller's thread
            task.finish(error)
        else:
            task.finish()

    def wait(self) -> None:
        """Wait for the thread and re-raise its error, if any."""
        error = self._finish()
        if error is not None:
            raise error

    def _finish(self) -> BaseException | None:
        """Wait for the thread and return its error; later calls return None."""
        task, thread = self._task, self._thread
        if task is None or thread is None or thread is threading.current_thread():
            return None
        task.wait()
        if thread.ident is not None:
            thread.join()
        self._task = None
        return task.error

    def drop(self) -> None:
        """Wait for the thread and log its error: at exit and in finalizers, no caller could catch it."""
        error = self._finish()
        if error is not None:
            _logger.error("%s", error)


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def finish_at_exit(writer: Writer) -> None:
    """Finish writing before the program exits.

    Orbax needs thread pools, which Python shuts down before it runs `atexit` handlers, so this uses the
    exit hooks of `threading`. They run in reverse order; importing the pools first makes ours run before
    theirs. A Python without these private hooks must shut pools down in another way: then `atexit` handlers
    finish the write or, if it fails, log why.
    """
    importlib.import_module("concurrent.futures.thread")
    if not _writers:
        register: Any = getattr(threading, "_register_atexit", atexit.register)
        register(_drop_all)
    _writers.add(writer)


def _drop_all() -> None:
    for writer in list(_writers):
        writer.drop()


# Niceness 15: about 1/30 of a contended core.
_NICE = 15


def _lower_priority() -> None:
    """Lower the priority of this thread, of any thread it starts, and of tensorstore's pool."""
    setpriority: Any = getattr(os, "setpriority", None)
    if setpriority is None:
        return
    for task in [threading.get_native_id(), *_tensorstore_threads()]:
        with contextlib.suppress(OSError):
            setpriority(os.PRIO_PROCESS, task, _NICE)


def _tensorstore_threads() -> list[int]:
    """The ids of tensorstore's pool threads, which don't inherit our priority; Linux only."""
    tasks = []
    with contextlib.suppress(OSError):
        for task in pathlib.Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                if (task / "comm").read_text().startswith("ts_pool_worker"):
                    tasks.append(int(task.name))
    return tasks
