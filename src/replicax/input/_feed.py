"""Reading ahead: a thread makes the next batches ready while the current step runs.

The thread knows nothing of the iterator that it feeds, so that dropping the iterator is enough to end it.
`_wake` carries a token for each batch that was taken, `_ready` the batches that were made. A dataset that
any thread may read is also read by the consumer itself when nothing is ready and nobody is at it; and the
thread is left alone as long as less could be gained by reading beside the consumer's work than the way from
thread to thread takes, which for small batches is most of the time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any, Protocol, final

from replicax._jax import ThreadSettings
from replicax.contexts import enter_default

__all__ = ["Feed", "Producer"]

_logger = logging.getLogger("replicax")

_STOP = object()

# How long closing waits for a reader that is in the middle of a batch.
_CLOSING_SECONDS = 10.0

# What handing a batch from thread to thread costs, more or less.
_HANDOVER_SECONDS = 100e-6

_Item = tuple[Any, BaseException | None]


class Producer(Protocol):
    """What a feed takes its items from."""

    def make(self) -> Any:
        """The next item; None after the last."""

    def cancel(self) -> None:
        """Do not wait for anybody else any more; called from another thread."""

    def close(self) -> None:
        """Called once, at the end."""


@final
class Feed:
    """What a producer makes, one after the other, ahead of time.

    Args:
        producer: makes the items.
        buffer_size: how many items are kept ready; 0 makes them when they are asked for.
        any_thread: items may be made now in this thread, now in that.
    """

    def __init__(self, producer: Producer, buffer_size: int, *, any_thread: bool) -> None:
        """Nothing is made until the first item is asked for."""
        self._maker = _Maker(producer)
        self._buffer_size = buffer_size
        self._helps = any_thread or buffer_size == 0
        self._wake: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._error: BaseException | None = None
        self._traceback: Any = None
        self._left = time.perf_counter()
        self._away = 0.0  # how long the consumer stays away, lately
        self._closed = False

    def get(self) -> Any:
        """The next item; None after the last. An error of the producer is raised here, every time."""
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)
        if self._closed:
            return None
        self._away += (time.perf_counter() - self._left - self._away) / 2
        item, error = self._next()
        if error is not None:
            self._error, self._traceback = error, error.__traceback__
            self.drop()
            raise error
        if item is None:
            self.close()
        elif self._is_worth_while():
            if self._thread is None:
                self._start()
            else:
                self._wake.put(None)
        self._left = time.perf_counter()
        return item

    def _is_worth_while(self) -> bool:
        """Whether to read ahead beside what the consumer does until it comes back."""
        if self._buffer_size == 0 or not self._helps:
            return self._buffer_size > 0
        return min(self._away, self._maker.seconds) > _HANDOVER_SECONDS

    def _next(self) -> _Item:
        if self._helps and self._maker.lock.acquire(blocking=False):
            # Nobody makes anything now. If all that was made is gone, make the next one here.
            try:
                if self._ready.empty():
                    with enter_default():
                        return self._maker.make()
            finally:
                self._maker.lock.release()
        elif self._thread is None and not self._start():
            return None, None
        return self._ready.get()

    def _start(self) -> bool:
        """Start the thread; False if it is too late for that."""
        with self._starting:
            if self._closed:
                return False
            arguments = (self._maker, self._wake, self._ready, self._buffer_size, ThreadSettings())
            thread = threading.Thread(target=_produce, args=arguments, name="replicax-input", daemon=True)
            thread.start()
            self._thread = thread
            self._wake.put(None)
            return True

    def close(self) -> None:
        """End the thread, and close what it reads from; raises what goes wrong in that."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        if thread is None:
            self._maker.close()
        else:
            self._maker.stopped = True
            self._maker.producer.cancel()
            self._wake.put(_STOP)
            if thread is not threading.current_thread():
                thread.join(_CLOSING_SECONDS)
        if self._maker.closing_error is not None:
            raise self._maker.closing_error

    def drop(self) -> None:
        """Close where nobody could catch an error: it is logged."""
        try:
            self.close()
        except Exception:
            _logger.exception("Closing a dataset failed.")


@final
class _Maker:
    """Makes one item at a time, whichever thread asks."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.lock = threading.Lock()
        self.stopped = False
        self.seconds = 0.0  # how long making an item takes, lately
        self.closing_error: Exception | None = None

    def make(self) -> _Item:
        """The next item, or why there is none; to be called with the lock."""
        start = time.perf_counter()
        try:
            item = self.producer.make()
            self.seconds += (time.perf_counter() - start - self.seconds) / 2
            return item, None
        except BaseException as error:  # handed over whatever it is: it is the user's to see
            return None, error

    def close(self) -> None:
        """Nothing more will be made."""
        try:
            self.producer.close()
        except Exception as error:  # raised in the thread that asked for it
            self.closing_error = error


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
        ready.put((None, None))  # for a consumer that waits


def _fill(maker: _Maker, ready: queue.SimpleQueue[_Item], buffer_size: int) -> bool:
    """Make items until the buffer is full; False if no more will be made.

    A consumer that is making one itself wakes the thread again when it is done.
    """
    while maker.lock.acquire(blocking=False):
        try:
            if maker.stopped:
                ready.put((None, None))  # for a consumer that waits
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
