"""Writing and reading one checkpoint with Orbax.

A checkpoint has two items: the arrays, and a document in JSON. The arrays are copies on the host, so one
process writes all of them. Orbax is told about that process only, and does not use its barriers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

__all__ = ["has_document", "read_document", "read_items", "write_items"]

_ARRAYS, _DOCUMENT, _FILE = "arrays", "document", "metadata"


def write_items(path: pathlib.Path, arrays: dict[str, np.ndarray], document: dict[str, Any]) -> None:
    """Write a checkpoint to `path`, which must not exist; its parent must."""
    import orbax.checkpoint as ocp

    items = {
        # Orbax can't store a structure without arrays.
        _ARRAYS: ocp.args.PyTreeSave(arrays or {"": np.zeros(1, np.int8)}),
        _DOCUMENT: ocp.args.JsonSave(document),
    }
    with _one_at_a_time(), _checkpointer() as checkpointer:
        checkpointer.save(path, args=ocp.args.Composite(**items))


def read_items(path: pathlib.Path) -> tuple[dict[str, np.ndarray], Any]:
    """The arrays and the document of a checkpoint."""
    import orbax.checkpoint as ocp

    items = {_ARRAYS: ocp.args.PyTreeRestore(), _DOCUMENT: ocp.args.JsonRestore()}
    with _one_at_a_time(), _checkpointer() as checkpointer:
        restored = checkpointer.restore(path, args=ocp.args.Composite(**items))
    return dict(restored[_ARRAYS]), restored[_DOCUMENT]


def has_document(path: pathlib.Path) -> bool:
    """Whether `path` looks like a checkpoint of ours, be it damaged or not."""
    return (path / _DOCUMENT).is_dir()


def read_document(path: pathlib.Path) -> dict[str, Any]:
    """The document of a checkpoint as it was given to `write_items`; empty if it can't be read."""
    try:
        document = json.loads((path / _DOCUMENT / _FILE).read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    # Compressing parameters takes most of the time and saves next to nothing.
    arrays = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=alone)
    document = ocp.JsonCheckpointHandler(_FILE, multiprocessing_options=alone)
    options = ocp.CompositeOptions(multiprocessing_options=alone)
    handler = ocp.CompositeCheckpointHandler(
        composite_options=options, **{_ARRAYS: arrays, _DOCUMENT: document}
    )
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


_lock = threading.Lock()


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Orbax does not write two checkpoints at once."""
    logger = logging.getLogger("absl")
    with _lock:
        logger.addFilter(_is_worth_showing)
        try:
            yield
        finally:
            logger.removeFilter(_is_worth_showing)


def _is_worth_showing(record: logging.LogRecord) -> bool:
    """A filter that passes all but two kinds of Orbax's messages.

    It reports every step of its work, and each of its threads logs the traceback of an error that it then
    raises, which is part of our own error.
    """
    caller = sys._getframe()
    while caller.f_back is not None and _package(caller) in ("replicax", "logging", "absl"):
        caller = caller.f_back
    if _package(caller) != "orbax":
        return True
    return record.levelno >= logging.WARNING and not record.exc_info


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
