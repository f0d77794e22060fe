"""Checks output folders before a training run starts, rather than failing at its end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["check_folder", "make_folder"]


def make_folder(caller: str, folder: str) -> None:
    """Create a folder if it does not exist, and check that files can be created in it.

    Args:
        caller: the call that the folder was passed to, for the message.
        folder: its path; URLs such as "gs://bucket" are not checked.

    Raises:
        OSError: it can't be created, is a file, or is not writable.
    """
    if "://" in folder:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = "it is a file" if Path(folder).is_file() else error.strerror or str(error)
        raise _error(type(error), caller, reason) from error


def check_folder(caller: str, folder: str) -> None:
    """Check that a folder could be created and written to, without creating anything.

    Args:
        caller: the call that the folder was passed to, for the message.
        folder: its path; URLs such as "gs://bucket" are not checked.

    Raises:
        OSError: the folder, or the one that it would be created in, is a file or is not writable.
    """
    if "://" in folder:
        return
    path = Path(folder).absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not existing.is_dir():
        raise _error(NotADirectoryError, caller, f"{existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _error(PermissionError, caller, f"{existing} is not writable")


def _error(kind: type[OSError], caller: str, reason: str) -> OSError:
    return kind(f"{caller}: can't write there: {reason}. Pass a writable folder.")
