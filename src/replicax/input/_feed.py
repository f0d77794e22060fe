"""Prefetching: a thread prepares the next batches while the current step runs.

The thread holds no reference to the iterator that it feeds, so dropping the iterator is enough to end it.
`wake` tells the thread how many items to make in total; `ready` carries the items. If any thread may read
the dataset, the consumer makes an item itself when none is ready and the thread is idle. Making a small
batch takes less time than handing it from thread to thread, so small batches do not use the thread at all.

Python runs signal handlers in the main thread, and an exception that one of them raises (such as
KeyboardInterrupt) can arrive after a call has returned and before its result is stored. To lose no item
then, a single call into C moves it from the producer, or from `ready`, into `box`, and the consumer removes
it from there with a statement that is not a call. Whatever an exception interrupts is simply done again.
"""

from __future__ import annotations

import _thread
import contextvars
import dataclasses
import logging
import queue
import threading
import time
from types import TracebackType
from typing import Any, Protocol, final

from replicax._jax import ThreadSettings
from replicax.cluster import worker_failure

__all__ = ["Feed", "Producer"]

_logger = logging.getLogger("replicax")

# How long `close` waits for a reader that is in the middle of a batch; shorter if a worker has failed.
_CLOSING_SECONDS = 10.0
_STOPPING_SECONDS = 1.0

# Roughly how long handing an item from thread to thread takes.
_HANDOVER_SECONDS = 100e-6


# The threads that are currently starting another one.
_starters: set[int] = set()


class Producer(Protocol):
    """What a feed takes its items from."""

    @property
    def number(self) -> int:
        """How many items have been made."""
        ...

    def make(self) -> Any:
        """The next item; None after the last.

        If an exception ends a call in the consumer's thread, the next call makes the same item.
        """

    def cancel(self) -> None:
        """Stop waiting for other processes; called from another thread."""

    def close(self) -> None:
        """Close the dataset; may be called again."""


@final
@dataclasses.dataclass(frozen=True)
class _Failed:
    """Stands for an item that could not be made."""

    error: BaseException
    traceback: TracebackType | None


@final
class Feed:
    """The items of a producer, made ahead of time.

    Args:
        producer: makes the items.
        buffer_size: how many items to make ahead; 0 makes an item only on request.
        any_thread: whether the consumer's thread may also make items.
    """

    def __init__(self, producer: Producer, buffer_size: int, *, any_thread: bool) -> None:
        self.box: list[Any] = []
        self._shared = _Shared(producer)
        self._buffer_size, self._any_thread = buffer_size, any_thread
        self._number = 0  # how many items have been put into the box
        self._thread_started = False
        self._closed = False
        self._left = time.perf_counter()
        self._between_calls = 0.0  # the recent time between calls of the consumer

    def peek(self) -> Any:
        """The next item, or None after the last. It stays in `box` until the caller deletes it there.

        This and every later call raise an error that occurred in the producer's thread.
        """
        self._between_calls += (time.perf_counter() - self._left - self._between_calls) / 2
        if not self.box:
            if self._closed:
                return None
            self._fetch()
        item = self.box[0]
        if isinstance(item, _Failed):
            self.drop()
            raise item.error.with_traceback(item.traceback)
        if item is None:
            self.close()
            return None
        self._number = item.number
        if self._reads_ahead():
            self._wake(item.number + self._buffer_size)
        self._left = time.perf_counter()
        return item

    def _reads_ahead(self) -> bool:
        """Whether the thread should make items before the consumer's next call."""
        if self._buffer_size == 0 or not self._any_thread:
            return self._buffer_size > 0
        return min(self._between_calls, self._shared.seconds) > _HANDOVER_SECONDS

    def _fetch(self) -> None:
        """Put the next item into the box."""
        if self._any_thread and self._make_here():
            return
        if self._wake(self._number + max(self._buffer_size, 1)):
            self.box.extend(map(self._shared.ready.get, (True,)))
        else:
            self.box.append(None)

    def _make_here(self) -> bool:
        """Make the next item in this thread; False if one is ready or the feed's thread is making it."""
        shared, acquired = self._shared, []
        try:
            acquired.extend(map(shared.lock.acquire, (False,)))
            if not acquired[0] or not shared.ready.empty():
                return False
            start = time.perf_counter()
            # In a copy of the context: an interrupt may leave context variables changed.
            self.box.extend(map(contextvars.copy_context().run, (shared.producer.make,)))
            shared.note_time(start)
            return True
        finally:
            if acquired and acquired[0]:
                shared.lock.release()

    def _wake(self, number: int) -> bool:
        """Let the thread make items up to this number; False if the feed is closed."""
        if not self._thread_started:
            if self._closed:
                return False
            arguments = (self._shared, ThreadSettings())
            thread = threading.Thread(target=_produce, args=arguments, name="replicax-input", daemon=True)
            # Start it from another thread: an exception in the middle of `Thread.start` would break it.
            _thread.start_new_thread(_start, (thread, self._shared))
            self._thread_started = True
        self._shared.wake.put(number)
        return True

    def close(self) -> None:
        """End the thread and close the dataset; raises if closing the dataset fails."""
        self._closed = True
        shared = self._shared
        if not self._has_thread():
            shared.producer.close()
            return
        shared.stopped = True
        shared.producer.cancel()
        shared.wake.put(None)
        # The garbage collector may call this in the thread itself or in its starter: they must not join it.
        here = threading.get_ident()
        if shared.thread is not None and here != shared.thread.ident and here not in _starters:
            shared.thread.join(_CLOSING_SECONDS if worker_failure() is None else _STOPPING_SECONDS)
        error, shared.closing_error = shared.closing_error, None
        if error is not None:
            raise error

    def _has_thread(self) -> bool:
        """Whether a thread has to be stopped. If not, none will start from now on."""
        shared, deadline = self._shared, time.monotonic() + _CLOSING_SECONDS
        while self._thread_started and not shared.claimed and time.monotonic() < deadline:
            time.sleep(1e-4)  # it is starting
        with shared.claim:
            shared.claimed = True
        return shared.thread is not None

    def drop(self) -> None:
        """Close, and log errors instead of raising them."""
        try:
            self.close()
        except Exception:
            _logger.exception("Closing a dataset failed.")


@final
class _Shared:
    """What the consumer shares with the thread."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.lock = threading.Lock()  # held while an item is being made
        self.wake: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # None stops the thread
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.seconds = 0.0  # the recent time to make an item
        self.claim = threading.Lock()
        self.claimed = False  # whether a thread makes items already, or none may
        self.thread: threading.Thread | None = None
        self.stopped = False
        self.closing_error: Exception | None = None

    def note_time(self, start: float) -> None:
        self.seconds += (time.perf_counter() - start - self.seconds) / 2


def _start(thread: threading.Thread, shared: _Shared) -> None:
    _starters.add(threading.get_ident())
    try:
        thread.start()
    except RuntimeError as error:  # too many threads
        shared.claimed = True
        shared.ready.put(_Failed(error, error.__traceback__))
    finally:
        _starters.discard(threading.get_ident())


def _produce(shared: _Shared, settings: ThreadSettings) -> None:
    with shared.claim:
        if shared.claimed:  # an interrupted call has already started a thread, or the feed is closed
            if shared.thread is None:
                shared.ready.put(None)  # for a consumer that waits
            return
        shared.claimed, shared.thread = True, threading.current_thread()
    settings.restore()  # JAX's settings in the user's thread, such as 64-bit mode
    try:
        while (number := shared.wake.get()) is not None:
            if not _fill(shared, number):
                return
    finally:
        try:
            shared.producer.close()
        except Exception as error:  # raised by `Feed.close`
            shared.closing_error = error
        shared.ready.put(None)  # for a consumer that waits


def _fill(shared: _Shared, number: int) -> bool:
    """Make items up to this number; False if there will be no more.

    If the consumer is making an item itself, it wakes the thread afterwards.
    """
    while shared.lock.acquire(blocking=False):
        try:
            if shared.stopped:
                return False
            if shared.producer.number >= number:
                return True
            item = _made(shared)
            shared.ready.put(item)
        finally:
            shared.lock.release()
        if item is None or isinstance(item, _Failed):
            return False
        del item
    return True


def _made(shared: _Shared) -> Any:
    start = time.perf_counter()
    try:
        item = shared.producer.make()
    except BaseException as error:  # whatever it is, the consumer raises it
        return _Failed(error, error.__traceback__)
    shared.note_time(start)
    return item
