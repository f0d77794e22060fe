"""Running Python code before native code aborts the process.

Gloo aborts a process that receives data of another collective, which happens when a third worker dies. XLA
aborts when a check fails. Python's own signal handlers do not help: they run later, in the main thread. So
this handler is a C function that takes the interpreter's lock and calls Python in the aborting thread.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
from collections.abc import Callable
from typing import Any

__all__ = ["before_abort"]

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_handlers: list[Any] = []  # C has no references to them


def before_abort(action: Callable[[], None]) -> None:
    """Call `action` in a thread that aborts the process; the abort continues when it returns."""

    def handle(number: int) -> None:
        if faulthandler.is_enabled():  # it had a handler for this signal
            faulthandler.dump_traceback()
        action()

    _handlers.append(_Handler(handle))
    library = ctypes.CDLL(None)
    library.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    library.signal.restype = ctypes.c_void_p
    library.signal(signal.SIGABRT, ctypes.cast(_handlers[-1], ctypes.c_void_p))
