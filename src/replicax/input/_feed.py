"""Reading ahead: a thread makes the next steps ready while the current one runs.

Two queues carry everything. `_slots` holds one token for each step that may still be made, `_ready` the
steps that are. The thread knows nothing of the iterator that it feeds, so that dropping the iterator is
enough to end it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, final

from replicax._jax import ThreadSettings
from replicax.contexts import enter_default

__all__ = ["Feed"]

_STOP = object()

# How long closing waits for a reader that is in the middle of a batch.
_CLOSING_SECONDS = 10.0


@final
class Feed:
    """What `make` makes, one after the other until it returns None, ahead of time.

    Args:
        make: makes the next item.
        close: called at the end, by whoever used `make` last.
        buffer_size: how many items are kept ready; 0 makes them when they are asked for.
    """

    def __init__(self, make: Callable[[], Any], close: Callable[[], None], buffer_size: int) -> None:
        """Nothing is made until the first item is asked for."""
        self._make, self._close = make, close
        self._buffer_size = buffer_size
        self._slots: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._end: BaseException | None = None
        self._closed = False

    def get(self) -> Any:
        """The next item; None after the last. An error of `make` is raised here, every time."""
        if self._end is not None:
            raise self._end
        if self._closed:
            return None
        if self._buffer_size == 0:
            return self._make_now()
        if self._thread is None:
            self._start()
        item, error = self._ready.get()
        if error is not None:
            self._end = error
            raise error
        if item is None:
            self.close()
        else:
            self._slots.put(None)
        return item

    def _make_now(self) -> Any:
        try:
            with enter_default():
                item = self._make()
        except BaseException as error:
            self._end = error
            self._close()
            raise
        if item is None:
            self.close()
        return item

    def _start(self) -> None:
        for _ in range(self._buffer_size):
            self._slots.put(None)
        arguments = (self._make, self._close, self._slots, self._ready, ThreadSettings())
        self._thread = threading.Thread(target=_produce, args=arguments, name="replicax-input", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close what it reads from."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            if self._end is None:
                self._close()
            return
        self._slots.put(_STOP)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_SECONDS)


def _produce(
    make: Callable[[], Any], close: Callable[[], None], slots: Any, ready: Any, settings: Any
) -> None:
    settings.restore()  # as in the thread of the user: 64 bits, for one
    try:
        while slots.get() is not _STOP:
            item = make()
            ready.put((item, None))
            if item is None:
                break
            del item
    except BaseException as error:  # handed over whatever it is: it is the user's to see
        ready.put((None, error))
    finally:
        close()
