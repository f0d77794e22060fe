"""Where a Python program is: the line of the user's code, and the stacks of all threads."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
import traceback
from types import FrameType

__all__ = ["all_stacks", "is_inside", "main_frame", "user_line"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NOT_THE_USERS = (
    _PACKAGE,
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<frozen",
)
_MOST_CHARACTERS = 8000


def main_frame() -> FrameType | None:
    """What the main thread is executing."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def user_line(frame: FrameType | None) -> str:
    """The innermost line of the user's code, such as 'train.py:31 in step'; empty if there is none."""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


@functools.cache
def _is_users(filename: str) -> bool:
    return not filename.startswith(_NOT_THE_USERS)


def is_inside(frame: FrameType | None, folder: str) -> bool:
    """Whether the innermost code of Replicax that is running is in `folder`."""
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(os.path.join(_PACKAGE, folder))


def all_stacks() -> str:
    """The stacks of all threads, the main thread's first."""
    frames = sys._current_frames()
    threads = sorted(threading.enumerate(), key=lambda thread: thread is not threading.main_thread())
    shown = (
        f"Thread {thread.name}:\n" + "".join(traceback.format_stack(frames[thread.ident]))
        for thread in threads
        if thread.ident in frames and thread is not threading.current_thread()
    )
    return "".join(shown)[:_MOST_CHARACTERS]
