"""Runs Python code when native code is about to abort the process.

Gloo aborts a process that receives data for the wrong collective, which happens when a third worker dies.
XLA aborts when a check fails. Python's signal handlers are too late: they run in the main thread, when it
is back in Python. So this installs a C handler, which takes the GIL and calls Python in the aborting
thread. At the end of the program, when there will be no Python to call, the default is restored.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import signal
from collections.abc import Callable
from typing import Any

__all__ = ["before_abort"]

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_handlers: list[Any] = []  # keeps the callbacks alive: C holds no reference


def before_abort(action: Callable[[], None]) -> None:
    """Call `action` in the aborting thread before the process aborts."""

    def handle(number: int) -> None:
        if faulthandler.is_enabled():  # we have replaced its handler for this signal
            faulthandler.dump_traceback()
        action()

    _handlers.append(_Handler(handle))
    _install(ctypes.cast(_handlers[-1], ctypes.c_void_p))


def _install(handler: ctypes.c_void_p | None) -> None:
    library = ctypes.CDLL(None)
    library.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    library.signal.restype = ctypes.c_void_p
    library.signal(signal.SIGABRT, handler)  # None is SIG_DFL


@atexit.register  # first, so that it runs last: JAX may abort when it leaves the cluster
def _restore_default() -> None:
    if _handlers:
        _install(None)
