"""Writes and reads the items of a checkpoint with Orbax.

A checkpoint consists of a JSON document and one or more items with arrays. The arrays are host copies, and
every process writes its own items. Orbax is told that each process is alone, which turns off its barriers:
they would have to be ordered with the collectives of the training steps.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from replicax.errors import CheckpointError

__all__ = [
    "FIRST_ITEM",
    "wrap_errors",
    "has_document",
    "item_name",
    "read_arrays",
    "read_document",
    "write_arrays",
    "write_document",
]

FIRST_ITEM, _DOCUMENT, _FILE = "arrays", "document", "metadata"


def item_name(process: int, number: int) -> str:
    """The name of the `number`-th array item that a process writes."""
    return f"{FIRST_ITEM}-{process}-{number}" if process or number else FIRST_ITEM


def write_arrays(path: pathlib.Path, item: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an item of a checkpoint; `path` must exist."""
    import orbax.checkpoint as ocp

    # Orbax can't store a structure without arrays.
    args = ocp.args.PyTreeSave(dict(arrays) or {"": np.zeros(1, np.int8)})
    with _one_at_a_time(), _for_arrays() as checkpointer:
        checkpointer.save(path / item, args=args)


def write_document(path: pathlib.Path, document: dict[str, Any]) -> None:
    """Write the document of a checkpoint; `path` must exist."""
    import orbax.checkpoint as ocp

    handler = ocp.JsonCheckpointHandler(_FILE, multiprocessing_options=_single_process())
    with _one_at_a_time(), _checkpointer(handler) as checkpointer:
        checkpointer.save(path / _DOCUMENT, args=ocp.args.JsonSave(document))


def read_arrays(path: pathlib.Path, item: str, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Read arrays from an item; names that it does not have are skipped."""
    import orbax.checkpoint as ocp

    wanted = dict.fromkeys(names, 0)
    as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in wanted}
    args = ocp.args.PyTreeRestore(item=wanted, restore_args=as_numpy, partial_restore=True)
    with _one_at_a_time(), _for_arrays() as checkpointer:
        found = checkpointer.restore(path / item, args=args)
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}


def has_document(path: pathlib.Path) -> bool:
    """Whether `path` looks like one of our checkpoints, damaged or not."""
    return (path / _DOCUMENT).is_dir()


def read_document(path: pathlib.Path) -> dict[str, Any]:
    """Read the document that `write_document` wrote; empty if it can't be read."""
    try:
        document = json.loads((path / _DOCUMENT / _FILE).read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _for_arrays() -> Any:
    import orbax.checkpoint as ocp

    options: dict[str, Any] = {"multiprocessing_options": _single_process()}
    if jax.process_index() > 0:
        options["type_handler_registry"] = _numpy_of_every_process()
    # No compression: it would take most of the time, and parameters hardly compress.
    return _checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False, **options))


def _checkpointer(handler: Any) -> Any:
    import orbax.checkpoint as ocp

    return ocp.Checkpointer(handler, multiprocessing_options=_single_process())


def _numpy_of_every_process() -> Any:
    """A NumPy handler that writes in every process; Orbax's own writes only on process 0."""
    from orbax.checkpoint import type_handlers
    from orbax.checkpoint._src.serialization import tensorstore_utils

    class Handler(type_handlers.NumpyHandler):
        async def _background_serialize(self, values: Any, infos: Any, args: Any = None) -> None:
            for value, info, arg in zip(values, infos, args, strict=True):
                await info.await_path_creation()
                spec = tensorstore_utils.build_array_write_spec(
                    info=info,
                    arg=arg,
                    global_shape=value.shape,
                    local_shape=value.shape,
                    dtype=value.dtype,
                    use_ocdbt=bool(info.is_ocdbt_checkpoint),
                    process_index=jax.process_index(),
                )
                await self._open_and_write(value, spec.json, info.ts_context)

    return type_handlers.create_type_handler_registry((np.ndarray, Handler()))


def _single_process() -> Any:
    import orbax.checkpoint as ocp

    own = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})


@contextlib.contextmanager
def wrap_errors(what: str) -> Iterator[None]:
    """A `with` block that turns errors into a `CheckpointError` whose message begins with `what`."""
    try:
        yield
    except Exception as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        detail = " ".join([lines[0][:400], *lines[-1:]]) if len(lines) > 1 else "".join(lines)[:800]
        kind = "" if isinstance(error, CheckpointError) else f"{type(error).__name__}: "
        raise CheckpointError(
            f"{what}: {kind}{detail or 'no reason given'}. Other checkpoints are unchanged."
        ) from error


_lock = threading.Lock()


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """A `with` block that only one thread enters at a time: Orbax can't write two checkpoints at once."""
    logger = logging.getLogger("absl")
    with _lock:
        logger.addFilter(_is_worth_showing)
        try:
            yield
        finally:
            logger.removeFilter(_is_worth_showing)


def _is_worth_showing(record: logging.LogRecord) -> bool:
    """A log filter that drops two kinds of Orbax messages.

    Orbax logs every stage of its work at INFO. And each of its threads logs the traceback of an error that
    it then raises, and that our own error includes.
    """
    caller = sys._getframe()
    while caller.f_back is not None and _package(caller) in ("replicax", "logging", "absl"):
        caller = caller.f_back
    if _package(caller) != "orbax":
        return True
    return record.levelno >= logging.WARNING and not record.exc_info


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
