"""Reading ahead: a thread makes the next batches ready while the current step runs.

The thread knows nothing of the iterator that it feeds, so that dropping the iterator is enough to end it.
`_wake` carries a token for each batch that was taken, `_ready` the batches that were made. A dataset that
any thread may read is also read by the consumer itself when nothing is ready and nobody is at it, which
saves small batches the way from thread to thread.
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

_Item = tuple[Any, BaseException | None]


@final
class Feed:
    """What `make` makes, one after the other until it returns None, ahead of time.

    Args:
        make: makes the next item.
        close: called once, at the end.
        buffer_size: how many items are kept ready; 0 makes them when they are asked for.
        any_thread: `make` may be called now in this thread, now in that.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        close: Callable[[], None],
        buffer_size: int,
        *,
        any_thread: bool,
    ) -> None:
        """Nothing is made until the first item is asked for."""
        self._maker = _Maker(make, close)
        self._buffer_size = buffer_size
        self._helps = any_thread or buffer_size == 0
        self._wake: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._closed = False

    def get(self) -> Any:
        """The next item; None after the last. An error of `make` is raised here, every time."""
        if self._error is not None:
            raise self._error
        if self._closed:
            return None
        item, error = self._next()
        if error is not None:
            self._error = error
            self.close()
            raise error
        if item is None:
            self.close()
        elif self._thread is not None:
            self._wake.put(None)
        elif self._buffer_size > 0:
            self._start()
        return item

    def _next(self) -> _Item:
        if self._helps and self._maker.lock.acquire(blocking=False):
            # Nobody makes anything now. If all that was made is gone, make the next one here.
            try:
                if self._ready.empty():
                    with enter_default():
                        return self._maker.make()
            finally:
                self._maker.lock.release()
        elif self._thread is None:
            self._start()
        return self._ready.get()

    def _start(self) -> None:
        arguments = (self._maker, self._wake, self._ready, self._buffer_size, ThreadSettings())
        self._thread = threading.Thread(target=_produce, args=arguments, name="replicax-input", daemon=True)
        self._thread.start()
        self._wake.put(None)

    def close(self) -> None:
        """End the thread, and close what it reads from."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            self._maker.close()
            return
        self._maker.stopped = True
        self._wake.put(_STOP)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_SECONDS)


@final
class _Maker:
    """Makes one item at a time, whichever thread asks."""

    def __init__(self, make: Callable[[], Any], close: Callable[[], None]) -> None:
        self._make, self._close = make, close
        self.lock = threading.Lock()
        self.stopped = False

    def make(self) -> _Item:
        """The next item, or why there is none; to be called with the lock."""
        try:
            return self._make(), None
        except BaseException as error:  # handed over whatever it is: it is the user's to see
            return None, error

    def close(self) -> None:
        """Nothing more will be made."""
        self._close()


def _produce(
    maker: _Maker,
    wake: queue.SimpleQueue[Any],
    ready: queue.SimpleQueue[_Item],
    buffer_size: int,
    settings: ThreadSettings,
) -> None:
    settings.restore()  # as in the thread of the user: 64 bits, for one
    try:
        while wake.get() is not _STOP:
            if not _fill(maker, ready, buffer_size):
                return
    finally:
        maker.close()


def _fill(maker: _Maker, ready: queue.SimpleQueue[_Item], buffer_size: int) -> bool:
    """Make items until the buffer is full; False if no more will be made.

    A consumer that is making one itself wakes the thread again when it is done.
    """
    while maker.lock.acquire(blocking=False):
        try:
            if maker.stopped:
                return False
            if ready.qsize() >= buffer_size:
                return True
            item = maker.make()
            ready.put(item)
        finally:
            maker.lock.release()
        if item[0] is None:
            return False
        del item
    return True
