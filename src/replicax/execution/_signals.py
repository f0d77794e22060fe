"""Deferring signal handlers while an exception from one of them would lose arrays.

JAX's first call of a program runs Python code after the arrays are donated and before the new ones are
returned. Later calls do not.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["signals_deferred"]


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer Python's signal handlers to the end of a `with` block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs signal handlers only in the main thread
        return
    handlers: dict[int, Any] = {
        number: handler
        for number in signal.valid_signals()
        if callable(handler := signal.getsignal(number))
    }
    deferred: list[int] = []
    deferring = True

    def receive(number: int, frame: Any) -> None:
        if deferring:
            deferred.append(number)
        else:
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, receive)
        yield
    finally:
        # From here on a restored handler may raise. `receive` calls the ones that are not restored yet.
        deferring = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in deferred:
            signal.raise_signal(number)
