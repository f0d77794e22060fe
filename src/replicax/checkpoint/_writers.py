"""Working folders of checkpoints, and how to tell that their writer is gone.

A writer creates a folder with a unique name and first records its identity there. Another process may
remove the folder only once the writer has exited. A process id proves that only on the same machine, since
its last boot and in the same container: containers have their own process ids, and machines may share a
file system. In all other cases a folder counts as abandoned when nothing in it has changed for a day.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import socket
import time
import uuid
from typing import Any

__all__ = ["new_working_folder", "remove_abandoned", "remove_checkpoint"]

_WRITING, _DELETED = ".replicax-writing-", ".replicax-deleted-"
_NOTE = "writer.json"
_ABANDONED_SECONDS = 24 * 3600.0


def new_working_folder(directory: pathlib.Path, name: str) -> pathlib.Path:
    """Create a working folder in `directory`; the checkpoint `name` is written to "checkpoint" in it."""
    folder = directory / f"{_WRITING}{name}-{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    try:
        (folder / _NOTE).write_text(json.dumps(_identity(os.getpid())))
        (folder / "checkpoint").mkdir()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def remove_checkpoint(path: pathlib.Path) -> None:
    """Delete a checkpoint. Rename it first: a half-deleted one must not look complete."""
    hidden = path.with_name(f"{_DELETED}{path.name}-{uuid.uuid4().hex[:12]}")
    with contextlib.suppress(OSError):
        path.rename(hidden)
        shutil.rmtree(hidden)


def remove_abandoned(directory: pathlib.Path) -> None:
    """Remove the working folders of writers that are gone, and half-deleted checkpoints."""
    for path in directory.iterdir():
        hidden = path.name.startswith(_DELETED)
        if hidden or (path.name.startswith(_WRITING) and _is_abandoned(path)):
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(folder: pathlib.Path) -> bool:
    if _has_exited(_read_identity(folder)):
        return True
    try:
        newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return False  # another process is changing it right now
    return newest < time.time() - _ABANDONED_SECONDS


def _read_identity(folder: pathlib.Path) -> dict[str, Any]:
    """The recorded identity of the writer; empty if it is missing or incomplete."""
    try:
        note = json.loads((folder / _NOTE).read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _has_exited(writer: dict[str, Any]) -> bool:
    """Whether the writer is known to have exited."""
    own = _identity(os.getpid())
    places = ("host", "boot", "processes")
    if own["boot"] is None or any(writer.get(key) != own[key] for key in places):
        return False
    try:
        os.kill(writer["process"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    started = _start_time(writer["process"])
    return started is not None and started != writer["started"]


def _identity(process: int) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "processes": _link("/proc/self/ns/pid"),
        "process": process,
        "started": _start_time(process),
    }


def _start_time(process: int) -> str | None:
    """When a process started, in clock ticks since boot; "" if it has exited; None if unknown."""
    status = _text(f"/proc/{process}/stat")
    if status is None:
        return None
    state, *fields = status.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def _text(path: str) -> str | None:
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return str(pathlib.Path(path).readlink())
    except OSError:
        return None
