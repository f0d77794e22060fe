"""Folders that a command is to write in, which it tries before it begins."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import final

__all__ = ["FolderError", "make_folder"]


@final
class FolderError(OSError):
    """A folder of the command line can't be made or written in."""


def make_folder(option: str, folder: Path) -> None:
    """Make a folder unless it is there, and see whether files can be made in it.

    Args:
        option: the option that names it, such as "--output".
        folder: its path.

    Raises:
        FolderError: it can't be made, or is a file, or can't be written in.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror or str(error)
        raise FolderError(
            f"{option} {folder}: can't write there: {reason}. Name a folder that can be written in."
        ) from error
