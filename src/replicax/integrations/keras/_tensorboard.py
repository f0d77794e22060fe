"""Keras' `TensorBoard` callback without TensorFlow: tensorboardX writes its files.

The callback writes through the module `tensorflow.summary`. Where TensorFlow is not installed, it gets a
stand-in with the functions of that module that it uses.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

__all__ = ["summarizing_without_tensorflow", "without_graph"]


def _has_tensorflow() -> bool:
    return importlib.util.find_spec("tensorflow") is not None


def summarizing_without_tensorflow(summary: property) -> property:
    """Make `TensorBoard.summary` a `_Summary` where TensorFlow is not installed."""

    def get(self: Any) -> Any:
        if self._summary_module is None and not _has_tensorflow():
            self._summary_module = _Summary()
        return summary.__get__(self)

    return property(get, doc=summary.__doc__)


def without_graph(write: Callable[..., Any]) -> Callable[..., Any]:
    """Make the callback skip the graph of layers, which only TensorFlow can write."""

    def call(self: Any) -> None:
        if _has_tensorflow():
            write(self)

    return call


@final
class _Writer:
    """A file for TensorBoard."""

    def __init__(self, summary: _Summary, folder: str) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "The TensorBoard callback needs TensorFlow or tensorboardX: pip install "
                "'replicax[tensorboard]'."
            ) from error
        self._summary, self.file = summary, SummaryWriter(folder)
        self.flush, self.close = self.file.flush, self.file.close

    @contextlib.contextmanager
    def as_default(self, step: int | None = None) -> Iterator[None]:
        before = self._summary.writer, self._summary.step
        self._summary.writer, self._summary.step = self, step if step is not None else before[1]
        try:
            yield
        finally:
            self._summary.writer, self._summary.step = before


@final
class _Summary:
    """The functions of `tensorflow.summary` that the callback uses."""

    def __init__(self) -> None:
        self.writer: _Writer | None = None
        self.step: int | None = None
        self._recording: list[Callable[[], bool] | bool] = [True]

    def create_file_writer(self, folder: str) -> _Writer:
        return _Writer(self, folder)

    @contextlib.contextmanager
    def record_if(self, condition: Callable[[], bool] | bool) -> Iterator[None]:
        self._recording.append(condition)
        try:
            yield
        finally:
            self._recording.pop()

    def _file(self) -> Any:
        condition = self._recording[-1]  # the innermost one counts
        recorded = condition() if callable(condition) else condition
        return self.writer.file if recorded and self.writer is not None else None

    def scalar(self, name: str, data: Any, step: int | None = None) -> None:
        if (file := self._file()) is not None:
            file.add_scalar(name, float(data), self.step if step is None else int(step))

    def histogram(self, name: str, data: Any, step: int | None = None) -> None:
        if (file := self._file()) is not None:
            file.add_histogram(name, np.asarray(data).ravel(), self.step if step is None else int(step))

    def image(self, name: str, data: Any, step: int | None = None) -> None:
        if (file := self._file()) is not None:
            for i, image in enumerate(np.asarray(data)):
                number = self.step if step is None else int(step)
                file.add_image(f"{name}/{i}", image, number, dataformats="HWC")

    def trace_on(self, graph: bool = False, profiler: bool = False) -> None:
        """Do nothing: JAX has no graph."""

    def trace_export(self, name: str, step: int) -> None:
        """Do nothing: JAX has no graph."""
