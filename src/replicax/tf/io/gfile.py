"""`tf.io.gfile`: the file functions that training programs use, on the local file system."""

from __future__ import annotations

import glob as _glob
import os
import shutil

__all__ = ["exists", "glob", "isdir", "listdir", "makedirs", "remove", "rmtree"]

exists, isdir, listdir, remove, rmtree = os.path.exists, os.path.isdir, os.listdir, os.remove, shutil.rmtree


def glob(pattern: str) -> list[str]:
    """The paths that match a pattern, sorted."""
    return sorted(_glob.glob(pattern))


def makedirs(path: str) -> None:
    """Create a directory and its parents if they do not exist."""
    os.makedirs(path, exist_ok=True)
