"""`tf.io.gfile`: the few functions for files that training programs use, on this machine's file system."""

from __future__ import annotations

import glob as _glob
import os
import shutil

__all__ = ["exists", "glob", "isdir", "listdir", "makedirs", "remove", "rmtree"]

exists, isdir, listdir, remove, rmtree = os.path.exists, os.path.isdir, os.listdir, os.remove, shutil.rmtree


def glob(pattern: str) -> list[str]:
    """The paths that match a pattern, in order."""
    return sorted(_glob.glob(pattern))


def makedirs(path: str) -> None:
    """Make a folder and those above it, if they are not there."""
    os.makedirs(path, exist_ok=True)
