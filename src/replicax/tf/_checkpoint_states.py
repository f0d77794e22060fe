"""Lists the checkpoints in a folder, and waits for new ones."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, final

from replicax.checkpoint import Store

__all__ = ["CheckpointState", "checkpoints_iterator", "get_checkpoint_state", "latest_checkpoint"]


@final
@dataclasses.dataclass(frozen=True)
class CheckpointState:
    """The checkpoints in a folder; returned by `tf.train.get_checkpoint_state`."""

    model_checkpoint_path: str
    """The path of the newest."""
    all_model_checkpoint_paths: list[str]
    """The paths of all, oldest first."""
    all_model_checkpoint_timestamps: list[float]
    """When they were written, in seconds since 1970."""
    last_preserved_timestamp: float = 0.0
    """Always 0: checkpoints are kept by number, not by time."""


def _check_filename(latest_filename: Any) -> None:
    if latest_filename is not None:
        raise ValueError(
            f"latest_filename={latest_filename!r} is not supported: checkpoints are found by their names. "
            "Leave it out."
        )


def _checkpoints(folder: pathlib.Path) -> list[tuple[int, int, str]]:
    """Time, number and path of the numbered checkpoints in a folder."""
    found = []
    for path in (folder / name for name in Store(folder).others()):
        if (match := re.fullmatch(r"(?:.*-)?(\d+)", path.name)) is None:
            continue
        with contextlib.suppress(FileNotFoundError):  # deleted by the program that saves
            found.append((path.stat().st_mtime_ns, int(match[1]), str(path)))
    return sorted(found)


def latest_checkpoint(checkpoint_dir: str | os.PathLike[str], latest_filename: Any = None) -> str | None:
    """The path of the newest checkpoint in a directory; None if there is none.

    >>> from replicax import tf
    >>> tf.train.latest_checkpoint("nowhere")
    """
    _check_filename(latest_filename)
    found = _checkpoints(pathlib.Path(checkpoint_dir))
    return found[-1][2] if found else None


def get_checkpoint_state(
    checkpoint_dir: str | os.PathLike[str], latest_filename: Any = None
) -> CheckpointState | None:
    """The checkpoints in a directory; None if there are none.

    >>> from replicax import tf
    >>> tf.train.get_checkpoint_state("nowhere")
    """
    _check_filename(latest_filename)
    found = _checkpoints(pathlib.Path(checkpoint_dir))
    if not found:
        return None
    paths = [path for _, _, path in found]
    return CheckpointState(paths[-1], paths, [nanoseconds / 1e9 for nanoseconds, _, _ in found])


def checkpoints_iterator(
    checkpoint_dir: str | os.PathLike[str],
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield the paths of new checkpoints as they are written, to evaluate them while training goes on.

    Args:
        checkpoint_dir: the directory.
        min_interval_secs: the minimum time between two checkpoints; those written in between are skipped.
        timeout: how many seconds to wait for the next one; None waits forever.
        timeout_fn: called at the timeout; the iteration ends if it returns True, or if there is none.
    """
    last: str | None = None
    while True:
        started = time.monotonic()
        newest = _next_checkpoint(checkpoint_dir, last, timeout)
        if newest is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        last = newest
        yield newest
        time.sleep(max(0.0, started + min_interval_secs - time.monotonic()))


def _next_checkpoint(folder: str | os.PathLike[str], last: str | None, timeout: float | None) -> str | None:
    """Wait for a newer checkpoint than `last`; None at the timeout."""
    end = None if timeout is None else time.monotonic() + timeout
    while (newest := latest_checkpoint(folder)) in (None, last):
        if end is not None and time.monotonic() >= end:
            return None
        time.sleep(0.1 if end is None else max(0.0, min(0.1, end - time.monotonic())))
    return newest
