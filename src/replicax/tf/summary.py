"""`tf.summary`: writes TensorBoard files with tensorboardX, which does not need TensorFlow.

    writer = tf.summary.create_file_writer("logs")
    with writer.as_default():
        tf.summary.scalar("loss", loss, step=epoch)

Values are written on the host: return them from a `tf.function` and write them outside. Of eager replicas,
only the first one writes, as in TensorFlow.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, final

import numpy as np

from replicax._jax import is_tracer
from replicax.contexts import get_replica_context
from replicax.tf._missing import refuse

__all__ = [
    "SummaryWriter",
    "create_file_writer",
    "create_noop_writer",
    "experimental",
    "flush",
    "histogram",
    "image",
    "record_if",
    "scalar",
    "should_record_summaries",
    "text",
]


@final
@dataclasses.dataclass(frozen=True)
class _Settings:
    writer: SummaryWriter | None = None
    step: Any = None
    record: Callable[[], Any] | Any = True


_settings = contextvars.ContextVar("tf.summary", default=_Settings())  # noqa: B039 (it is frozen)


@contextlib.contextmanager
def _with(**changes: Any) -> Iterator[None]:
    token = _settings.set(dataclasses.replace(_settings.get(), **changes))
    try:
        yield
    finally:
        _settings.reset(token)


class SummaryWriter:
    """Writes to a file for TensorBoard; created by `create_file_writer`."""

    def __init__(self, file: Any) -> None:
        self._file = file
        if file is not None:
            weakref.finalize(self, file.close)  # at exit at the latest

    @contextlib.contextmanager
    def as_default(self, step: Any = None) -> Iterator[SummaryWriter]:
        """A `with` block in which summaries go to this writer, by default with this `step`."""
        step = _settings.get().step if step is None else step
        with _with(writer=self, step=step):
            yield self
        self.flush()

    def set_as_default(self, step: Any = None) -> None:
        """Send all later summaries to this writer."""
        settings = _settings.get()
        step = settings.step if step is None else step
        _settings.set(dataclasses.replace(settings, writer=self, step=step))

    def init(self) -> None:
        """Do nothing: the file is open."""

    def flush(self) -> None:
        """Write what is in memory to the file."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write buffered summaries and close the file. Later summaries raise an error."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create_file_writer(
    logdir: Any,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
) -> SummaryWriter:
    """A writer for a new file in the folder `logdir`.

    Args:
        logdir: the folder; it is created if it does not exist.
        max_queue: how many summaries to buffer; 10 by default.
        flush_millis: the maximum time between two flushes; two minutes by default.
        filename_suffix: the suffix of the file's name.
        name: no effect.

    >>> import os, tempfile
    >>> from replicax import tf
    >>> folder = tempfile.mkdtemp()
    >>> with tf.summary.create_file_writer(folder) as writer, writer.as_default():
    ...     tf.summary.scalar("loss", tf.constant(0.5), step=1)
    True
    >>> len(os.listdir(folder))
    1
    """
    try:
        import tensorboardX
    except ImportError as error:
        raise ImportError(
            "tf.summary needs tensorboardX, which is not installed: pip install 'replicax[tensorboard]'."
        ) from error
    file = tensorboardX.SummaryWriter(
        str(logdir),
        max_queue=10 if max_queue is None else max_queue,
        flush_secs=120 if flush_millis is None else flush_millis / 1000,  # pyright: ignore
        filename_suffix=filename_suffix or "",
    )
    return SummaryWriter(file)


def create_noop_writer() -> SummaryWriter:
    """A writer that writes nothing."""
    return SummaryWriter(None)


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Write a number. Returns whether it was written: there was a writer, and `record_if` allowed it.

    Args:
        name: the name in TensorBoard.
        data: a scalar.
        step: the number of the step; by default that of `as_default` or `experimental.set_step`.
        description: no effect.
    """
    return _write("scalar", name, data, step, lambda file, x, i: file.add_scalar(name, x.item(), i))


def histogram(
    name: str, data: Any, step: Any = None, buckets: int | None = None, description: str | None = None
) -> bool:
    """Write the distribution of the numbers in `data`; `buckets` is their number, 30 by default."""
    bins = buckets or 30

    def add(file: Any, x: np.ndarray, i: int) -> None:
        file.add_histogram(name, x.ravel(), i, bins=bins)

    return _write("histogram", name, data, step, add)


def image(
    name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None
) -> bool:
    """Write the first `max_outputs` images of a batch of shape `[k, height, width, channels]`."""

    def add(file: Any, x: np.ndarray, i: int) -> None:
        for number, one in enumerate(x[:max_outputs]):
            file.add_image(f"{name}/image/{number}", one, i, dataformats="HWC")

    return _write("image", name, data, step, add)


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Write a string, which TensorBoard shows as Markdown."""
    data = data.decode() if isinstance(data, bytes) else str(data)
    return _write("text", name, np.asarray(data), step, lambda file, x, i: file.add_text(name, str(x), i))


def _write(kind: str, name: str, data: Any, step: Any, add: Callable[[Any, Any, int], None]) -> bool:
    if is_tracer(data) or is_tracer(step):
        raise NotImplementedError(
            f"tf.summary.{kind}({name!r}) in a compiled function: files are written on the host. Return "
            "the value from the tf.function, and write it outside."
        )
    settings = _settings.get()
    if settings.writer is None or not should_record_summaries():
        return False
    step = settings.step if step is None else step
    if step is None:
        raise ValueError(
            f"tf.summary.{kind}({name!r}): there is no step. Pass `step=`, or call "
            "tf.summary.experimental.set_step(step) first."
        )
    if settings.writer._file is not None:
        add(settings.writer._file, np.asarray(data), int(step))
    return True


def should_record_summaries() -> bool:
    """Whether summaries are written here: `record_if` allows it, and no other replica does it."""
    settings = _settings.get()
    context = get_replica_context()
    if settings.writer is None or (context is not None and _is_later(context.replica_id_in_sync_group)):
        return False
    return bool(settings.record() if callable(settings.record) else settings.record)


def _is_later(replica_id: Any) -> bool:
    """Whether this is known not to be the first replica."""
    return not is_tracer(replica_id) and int(replica_id) > 0


def record_if(condition: Any) -> contextlib.AbstractContextManager[None]:
    """A `with` block in which summaries are written if `condition`, or what it returns, is true."""
    return _with(record=condition)


def flush(writer: SummaryWriter | None = None, name: str | None = None) -> None:
    """Write the buffered summaries of `writer`, by default the current one."""
    writer = writer or _settings.get().writer
    if writer is not None:
        writer.flush()


def _set_step(step: Any) -> None:
    """Use `step`, a number or a variable, for summaries that do not name one."""
    _settings.set(dataclasses.replace(_settings.get(), step=step))


def _get_step() -> Any:
    """The step for summaries that do not name one, or None."""
    return _settings.get().step


experimental = SimpleNamespace(set_step=_set_step, get_step=_get_step)

_PROFILE = "`jax.profiler.start_trace(folder)` and `stop_trace()`, or `rx.Tracker`"

__getattr__ = refuse(
    "tf.summary",
    {
        "audio": "`add_audio` of a `tensorboardX.SummaryWriter`",
        "graph": "nothing: there are no graphs",
        "trace_export": _PROFILE,
        "trace_off": _PROFILE,
        "trace_on": _PROFILE,
        "write": "`scalar`, `histogram`, `image` or `text`",
    },
)
