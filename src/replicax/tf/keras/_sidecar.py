"""`SidecarEvaluator`: evaluates checkpoints in one process while another one trains."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, final

from replicax.tf._checkpoint_states import latest_checkpoint
from replicax.tf.train import Checkpoint

__all__ = ["SidecarEvaluator"]

_SECONDS_BETWEEN_LOOKS = 0.5
_WEIGHTS = (".weights.h5", ".keras", ".h5")

_logger = logging.getLogger("replicax")


@final
class SidecarEvaluator:
    """Evaluates a model each time the training, in another process, saves it.

    It reads what `tf.train.CheckpointManager(tf.train.Checkpoint(model=model), ...)` saves, and files of
    `keras.callbacks.ModelCheckpoint`, with weights only or the whole model. The model may be created under
    any strategy: the evaluator does not need the devices of the training.

    Args:
        model: a compiled model with the same variables as the one that is trained.
        data: a dataset, or a tuple of arrays `(x, y)` or `(x, y, sample_weight)`.
        checkpoint_dir: the folder that training saves to.
        steps: how many batches to evaluate each time; None for all.
        max_evaluations: stop after a checkpoint with this number or a higher one at the end of its name,
            such as "ckpt-10" or "10.weights.h5". None never stops.
        callbacks: for `model.evaluate`.

    >>> import keras, os, tempfile
    >>> from replicax import tf
    >>> data = np.ones((4, 2)), np.ones((4, 1))
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> folder = tempfile.mkdtemp()
    >>> model.save_weights(os.path.join(folder, "ckpt-1.weights.h5"))
    >>> evaluator = tf.keras.utils.SidecarEvaluator(model, data, folder, max_evaluations=1)
    >>> evaluator.start()                                          # doctest: +ELLIPSIS
    1/1 - ... - loss: ...
    >>> list(evaluator.results[-1])
    ['loss']
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> None:
        if not getattr(model, "compiled", False):
            raise ValueError(
                "tf.keras.utils.SidecarEvaluator takes a compiled model: call `model.compile(loss=..., "
                "metrics=...)` first, as in the program that trains."
            )
        self._model, self._folder = model, pathlib.Path(checkpoint_dir)
        self._data = data if isinstance(data, tuple) else (data,)
        self._steps, self._last, self._callbacks = steps, max_evaluations, callbacks
        self.results: list[dict[str, float]] = []
        """What `model.evaluate` returned for each checkpoint."""

    def start(self) -> None:
        """Evaluate checkpoints as they are saved; returns after the last one (`max_evaluations`)."""
        for path in self._new_checkpoints():
            if not self._load(path):
                continue
            found = self._model.evaluate(
                *self._data, steps=self._steps, callbacks=self._callbacks, verbose=2, return_dict=True
            )
            self.results.append(found)
            _logger.info("Evaluated %s: %s.", path.name, found)
            if self._last is not None and _number(path) >= self._last:
                return

    def _new_checkpoints(self) -> Iterator[pathlib.Path]:
        """New checkpoints that have stopped changing: Keras writes files in place."""
        done, seen = None, None
        while True:
            before, seen = seen, _newest(self._folder)
            if seen is not None and seen == before and seen != done:
                done = seen
                yield seen[1]
            else:
                time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _load(self, path: pathlib.Path) -> bool:
        """Load a checkpoint; returns False if it is gone, because training keeps only the newest ones."""
        try:
            if path.name.endswith(_WEIGHTS):
                self._model.load_weights(path)
            else:
                Checkpoint(model=self._model).restore(os.fspath(path)).expect_partial()
        except Exception:
            if path.exists():
                raise
            _logger.info("%s was deleted before it could be evaluated.", path.name)
            return False
        return True


def _newest(folder: pathlib.Path) -> tuple[int, pathlib.Path] | None:
    """The newest checkpoint and when it was written; a rewritten file counts as new."""
    files = [path for path in folder.glob("*") if path.name.endswith(_WEIGHTS)] if folder.is_dir() else []
    if (saved := latest_checkpoint(folder)) is not None:
        files.append(pathlib.Path(saved))
    found = []
    for path in files:
        try:
            found.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:  # deleted in the meantime
            continue
    return max(found, default=None)


def _number(path: pathlib.Path) -> int:
    """The number at the end of a checkpoint's name; -1 if there is none."""
    name = path.name
    for ending in _WEIGHTS:
        name = name.removesuffix(ending)
    found = re.search(r"(\d+)$", name)
    return int(found[1]) if found else -1
