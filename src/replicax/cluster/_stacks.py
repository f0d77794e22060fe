"""Where a Python program is: the current line of user code, and the stacks of all threads.

Walking the frames of another thread is not safe: the thread keeps running, and eager replicas, which are
greenlets, swap frames, so that the walk can crash. `faulthandler` reads all stacks in one operation of the
interpreter.

But in Python 3.11 that crashes, too, if a native thread is calling into Python for the first time at that
moment, as tensorstore's do: Python lists the thread before it has initialized it. The watchdog reads the
main thread's stack several times a second, so there it asks for this thread alone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import re
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from traceback import FrameSummary, StackSummary
from typing import IO

__all__ = ["all_stacks", "is_inside", "main_stack", "user_line"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NOT_THE_USERS = (
    _PACKAGE,
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<frozen",
)
_MOST_CHARACTERS = 8000
_MOST_CALLS = 40
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def main_stack() -> list[FrameSummary]:
    """The stack of the main thread, innermost call first."""
    number = threading.main_thread().ident or 0
    if _main_state is None:
        return _stacks().get(number, [])
    text = _written_by(lambda file: ctypes.pythonapi._Py_DumpTraceback(file.fileno(), _main_state))
    return _parsed(f"Thread 0x{number:x}\n{text}").get(number, [])


def _stacks() -> dict[int, list[FrameSummary]]:
    """The stacks of all threads by identifier, innermost call first, up to 100 frames each."""
    return _parsed(_written_by(lambda file: faulthandler.dump_traceback(file, all_threads=True)))


def _written_by(dump: Callable[[IO[bytes]], object]) -> str:
    with tempfile.TemporaryFile() as file:
        dump(file)
        file.seek(0)
        return file.read().decode(errors="replace")


def _parsed(text: str) -> dict[int, list[FrameSummary]]:
    stacks: dict[int, list[FrameSummary]] = {}
    stack: list[FrameSummary] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            stack = stacks[int(thread[1], 16)] = []
        elif frame := _FRAME.match(line):
            stack.append(FrameSummary(frame[1], int(frame[2]), frame[3], lookup_line=False))
    return stacks


def _find_main_state() -> None:
    """Find the interpreter's state of the main thread, where `faulthandler` is not safe."""
    global _main_state
    is_main = threading.current_thread() is threading.main_thread()
    if sys.version_info < (3, 12) and is_main and hasattr(ctypes.pythonapi, "_Py_DumpTraceback"):
        ctypes.pythonapi._Py_DumpTraceback.argtypes = ctypes.c_int, ctypes.c_void_p
        ctypes.pythonapi._Py_DumpTraceback.restype = None
        ctypes.pythonapi.PyThreadState_Get.restype = ctypes.c_void_p
        _main_state = ctypes.pythonapi.PyThreadState_Get()


_main_state: int | None = None
_find_main_state()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_find_main_state)  # another thread may be the main one


def user_line(stack: list[FrameSummary]) -> str:
    """The innermost line of user code, such as 'train.py:31 in step'; empty if there is none."""
    frame = next((frame for frame in stack if _is_users(frame.filename)), None)
    return "" if frame is None else f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"


@functools.cache
def _is_users(filename: str) -> bool:
    return not filename.startswith(_NOT_THE_USERS)


def is_inside(stack: list[FrameSummary], folder: str) -> bool:
    """Whether the innermost frame of Replicax is in `folder`."""
    ours = next((frame.filename for frame in stack if frame.filename.startswith(_PACKAGE)), "")
    return ours.startswith(os.path.join(_PACKAGE, folder))


def all_stacks() -> str:
    """The stacks of all threads, the main thread's first."""
    stacks = _stacks()
    threads = sorted(threading.enumerate(), key=lambda thread: thread is not threading.main_thread())
    shown = (
        f"Thread {thread.name}:\n" + "".join(_innermost_last(stacks[thread.ident]).format())
        for thread in threads
        if thread.ident in stacks and thread is not threading.current_thread()
    )
    return "".join(shown)[:_MOST_CHARACTERS]


def _innermost_last(stack: list[FrameSummary]) -> StackSummary:
    return StackSummary.from_list(stack[:_MOST_CALLS][::-1])
