"""Writing a checkpoint in a thread, where neither training nor an interrupt disturbs it."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pathlib
import threading
import weakref
from concurrent import futures
from typing import Any, final

from replicax.checkpoint._content import Content
from replicax.checkpoint._store import Store

__all__ = ["Writer", "finish_at_exit"]

_logger = logging.getLogger("replicax")


@final
class Writer:
    """Writes one checkpoint at a time, each in a new thread.

    A future tells when a thread is done, even if an exception (Ctrl-C) interrupts a call here:
    `Thread.join` can't be repeated after that, since Python then takes the thread for ended.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._future: futures.Future[None] | None = None

    def write_now(self, step: int, content: Content) -> None:
        """Write, and wait until that is done.

        This too uses a thread, since exceptions of signal handlers reach the main thread alone: Orbax can't
        be interrupted. Such an exception is raised when the checkpoint is complete.
        """
        try:
            self.write(step, content, nice=False)
            self.wait()
        except BaseException:
            self._finish()
            raise

    def write(self, step: int, content: Content, *, nice: bool = True) -> None:
        """Start to write; with `nice`, at a low priority."""
        future: futures.Future[None] = futures.Future()
        arguments = (future, step, content, nice)
        thread = threading.Thread(target=self._run, args=arguments, name="replicax-checkpoint")
        try:
            self._thread, self._future = thread, future
            thread.start()
        except BaseException:
            future.cancel()  # has no effect if the thread is writing already
            raise

    def _run(self, future: futures.Future[None], step: int, content: Content, nice: bool) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            if nice:
                _lower_priority()
            self._store.save(step, content)
        except BaseException as error:  # `wait` raises it in the caller's thread
            future.set_exception(error)
        else:
            future.set_result(None)

    def wait(self) -> None:
        """Wait for the thread, and raise its error."""
        error = self._finish()
        if error is not None:
            raise error

    def _finish(self) -> BaseException | None:
        """Wait for the thread; returns its error, once."""
        future, thread = self._future, self._thread
        if future is None or thread is None or thread is threading.current_thread():
            return None
        error = None
        with contextlib.suppress(futures.CancelledError):
            error = future.exception()
        if thread.ident is not None:
            thread.join()
        self._future = None
        return error

    def drop(self) -> None:
        """Wait for the thread, and log its error: at exit or in a finalizer, none could be caught."""
        error = self._finish()
        if error is not None:
            _logger.error("%s", error)


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def finish_at_exit(writer: Writer) -> None:
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
