"""Folders that are to be written in: better refused before a training run than at its end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["check_folder", "make_folder"]


def make_folder(caller: str, folder: str) -> None:
    """Make a folder unless it is there, and see whether files can be made in it.

    Args:
        caller: what the folder was passed to, for the message.
        folder: its path; an address such as "gs://bucket" is left to those who understand it.

    Raises:
        OSError: it can't be made, or is a file, or can't be written in.
    """
    if "://" in folder:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = "it is a file" if Path(folder).is_file() else error.strerror or str(error)
        raise _refusal(type(error), caller, reason) from error


def check_folder(caller: str, folder: str) -> None:
    """See whether a folder could be made and written in, without making anything.

    Args:
        caller: what the folder was passed to, for the message.
        folder: its path; an address such as "gs://bucket" is left to those who understand it.

    Raises:
        OSError: it or what it would be made in is a file, or can't be written in.
    """
    if "://" in folder:
        return
    path = Path(folder).absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not existing.is_dir():
        raise _refusal(NotADirectoryError, caller, f"{existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _refusal(PermissionError, caller, f"{existing} may not be written in")


def _refusal(kind: type[OSError], caller: str, reason: str) -> OSError:
    return kind(f"{caller}: can't write there: {reason}. Name a folder that can be written in.")
