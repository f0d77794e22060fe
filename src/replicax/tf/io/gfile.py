"""`tf.io.gfile`: the file functions that training programs use, on the local file system."""

from __future__ import annotations

import functools
import glob as _glob
import os
import shutil
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from replicax.errors import MissingFilesError
from replicax.tf._missing import refuse

__all__ = [
    "GFile",
    "copy",
    "exists",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "walk",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")

exists, isdir, join, walk = os.path.exists, os.path.isdir, os.path.join, os.walk


def raising_not_found(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function raise `tf.errors.NotFoundError` for files that do not exist."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except FileNotFoundError as error:
            raise MissingFilesError(f"{error.strerror}: {error.filename!r}.") from error

    return call


@raising_not_found
def listdir(path: str) -> list[str]:
    """The names in a directory."""
    return os.listdir(path)


@raising_not_found
def remove(path: str) -> None:
    """Delete a file."""
    os.remove(path)


@raising_not_found
def rmtree(path: str) -> None:
    """Delete a directory and its contents."""
    shutil.rmtree(path)


@raising_not_found
def copy(src: str, dst: str, overwrite: bool = False) -> None:
    """Copy a file."""
    _require_free(dst, overwrite)
    shutil.copyfile(src, dst)


@raising_not_found
def rename(src: str, dst: str, overwrite: bool = False) -> None:
    """Move a file or a directory."""
    _require_free(dst, overwrite)
    os.replace(src, dst)


def _require_free(path: str, overwrite: bool) -> None:
    if not overwrite and os.path.exists(path):
        raise FileExistsError(f"{path!r} exists. Pass overwrite=True to replace it.")


def GFile(name: str, mode: str = "r") -> Any:
    """Open a file with Python's `open`."""
    return raising_not_found(open)(name, mode)


def glob(pattern: str) -> list[str]:
    """The paths that match a pattern, sorted."""
    return sorted(_glob.glob(pattern))


def mkdir(path: str) -> None:
    """Create a directory."""
    raising_not_found(os.makedirs)(path, exist_ok=True)


def makedirs(path: str) -> None:
    """Create a directory and its parents if they do not exist."""
    os.makedirs(path, exist_ok=True)


__getattr__ = refuse("tf.io.gfile", {"stat": "`os.stat`"})
