"""`rx.Tracker`: logs metrics without stalling the devices.

A loss is an array that may still be being computed. Reading it right away would block Python in every step,
and then leave the device idle. So the tracker queues the arrays, and every few steps reads those that are
ready.
"""

from __future__ import annotations

import atexit
import collections
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import ArrayImpl, is_tracer
from replicax.errors import ContextError
from replicax.tracking._processes import on_first_process
from replicax.tracking._tensorboard import TensorBoardWriter
from replicax.tracking._writers import (
    Writer,
    csv_writer,
    json_lines_writer,
    mlflow_writer,
    wandb_writer,
)
from replicax.values import Mirrored, PerReplica, is_number
from replicax.variables import Variable

__all__ = ["Tracker"]


@final
@dataclass(slots=True, eq=False)
class _Entry:
    """The numbers that were logged for one step; the last one is the step number."""

    names: tuple[str, ...]
    numbers: tuple[Any, ...]
    seconds: float
    num_taken: int = 0  # how many writers have written it

    @property
    def is_ready(self) -> bool:
        """Whether all numbers have been computed."""
        arrays: list[Any] = [x for x in self.numbers if isinstance(x, ArrayImpl)]
        # `is_ready` of a deleted array may crash the process.
        return all(array.is_deleted() or array.is_ready() for array in arrays)

    @property
    def deleted(self) -> list[int]:
        """The indices of arrays that have been deleted."""
        return [i for i, x in enumerate(self.numbers) if isinstance(x, ArrayImpl) and x.is_deleted()]


@final
class Tracker:
    """Logs metrics to TensorBoard, files, Weights & Biases, MLflow, or functions of your own.

    `log` queues its arguments and returns at once. Every few calls, the numbers that are ready by then are
    read and written. Python waits only if the devices are further behind than that. All processes may call
    all methods; only the first process writes.

    Close a tracker, or use it in a `with` block, to write the remaining numbers. Otherwise they are written
    at exit.

    If a writer raises, that step and those after it are retried the next time.

    Args:
        tensorboard: a folder for TensorBoard event files; needs `pip install 'replicax[tensorboard]'`.
        csv: a file with one row per step; later runs append to it.
        json_lines: a file with one JSON object per line; later runs append to it.
        wandb: a Weights & Biases run, or True for the current one; needs `pip install wandb`.
        mlflow: True logs to the active MLflow run; needs `pip install mlflow`.
        console: whether to print a line with the newest numbers each time.
        writers: functions that are called with each step and its numbers, a dict of floats.
        every: write after this many calls of `log`.

    Raises:
        ImportError: the package that an argument needs is not installed.
        OSError: `tensorboard` is a file, or a folder that is not writable.
        ValueError: `every` is less than 1.

    >>> with rx.Tracker(console=True, every=10) as tracker:
    ...     for step in range(1, 26):
    ...         tracker.log(step, loss=1 / step, accuracy=1 - 1 / step)
    step 10  loss 0.1  accuracy 0.9
    step 20  loss 0.05  accuracy 0.95
    step 25  loss 0.04  accuracy 0.96
    """

    def __init__(
        self,
        *,
        tensorboard: str | os.PathLike[str] | None = None,
        csv: str | os.PathLike[str] | None = None,
        json_lines: str | os.PathLike[str] | None = None,
        wandb: Any = None,
        mlflow: Any = None,
        console: bool = False,
        writers: Iterable[Writer] = (),
        every: int = 10,
    ) -> None:
        """Nothing is written, and JAX is not started, before the first `log`."""
        if isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 1:
            raise ValueError(f"rx.Tracker(every={every!r}): pass a number of steps, 1 or more.")
        if not isinstance(writers, Iterable) or not all(map(callable, writers := list(writers))):
            raise TypeError("rx.Tracker(writers=...): pass a list of functions of (step, numbers).")
        self._tensorboard = None if tensorboard is None else TensorBoardWriter(tensorboard)
        self._console = console
        arguments = {
            csv_writer: csv,
            json_lines_writer: json_lines,
            wandb_writer: wandb,
            mlflow_writer: mlflow,
        }
        given = arguments.items() if on_first_process() else ()  # other processes may have no wandb run
        made = [make(argument) for make, argument in given if argument is not None]
        self._writers = [_without_time(write) for write in (*made, *writers)]
        if self._tensorboard is not None:
            self._writers.insert(0, self._tensorboard.write)
        self._every = int(every)
        self._num_logged = 0
        self._pending: collections.deque[_Entry] = collections.deque()
        self._lost: list[str] = []
        self._closed = False
        atexit.register(self.close)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, step: Any, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Log the numbers of a step, without waiting for them.

        Args:
            step: the step number; it may be an array or a variable, such as `optimizer.iterations`.
            values: numbers by name, for names that are not identifiers, such as "train/loss".
            more: numbers by name. All are scalars: Python numbers, NumPy numbers, arrays, or variables,
                whose current value is logged.

        Raises:
            ContextError: it was called inside a traced function.
            TypeError: a value is not a real number, has no name, or is a PerReplica.
            ValueError: a value is not a scalar.

        >>> with rx.Tracker(console=True) as tracker:
        ...     tracker.log(1, {"train/loss": jnp.float32(0.25)}, learning_rate=1e-3)
        step 1  train/loss 0.25  learning_rate 0.001
        """
        if self._closed:
            raise ValueError("This tracker is closed; create another one.")
        values = {} if values is None else values
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise TypeError(f'Tracker.log takes numbers by name, {{"train/loss": loss}}, got {values!r}.')
        numbers = {**values, **more}
        names = (*numbers, "step")
        scalars = tuple(_scalar(name, x) for name, x in zip(names, (*numbers.values(), step), strict=True))
        if not on_first_process():
            return
        self._pending.append(_Entry(names, scalars, time.time()))
        self._num_logged += 1
        if self._num_logged % self._every == 0:
            self._write(at_most_left=self._every)

    def flush(self) -> None:
        """Wait for everything that was logged and write it.

        Raises:
            RuntimeError: an array was deleted before it was read; everything else was written.

        >>> tracker = rx.Tracker(console=True)
        >>> tracker.log(1, loss=0.5)
        >>> tracker.flush()
        step 1  loss 0.5
        >>> tracker.close()
        """
        if self._closed:
            self.close()  # again, if it failed the first time
        else:
            self._write(at_most_left=0)

    def close(self) -> None:
        """Wait for everything that was logged, write it, and close the files.

        A second call does nothing, unless a writer raised in the first: then it writes the rest.

        Raises:
            RuntimeError: an array was deleted before it was read; everything else was written.

        >>> tracker = rx.Tracker()
        >>> tracker.close()
        """
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._write(at_most_left=0)
        finally:
            if self._tensorboard is not None:
                self._tensorboard.close()

    def _write(self, at_most_left: int) -> None:
        """Write the oldest entries: those that are ready, and any beyond the last `at_most_left`."""
        entries: collections.deque[_Entry] = collections.deque()
        while self._pending and (len(self._pending) > at_most_left or self._pending[0].is_ready):
            entries.append(self._pending.popleft())
        try:
            self._lost += _drop_deleted(entries)
            self._write_entries(entries)
        finally:
            self._pending.extendleft(reversed(entries))
        if self._tensorboard is not None:
            self._tensorboard.flush()
        if self._lost:
            lost, self._lost = ", ".join(self._lost), []
            raise RuntimeError(
                f"Tracker could not read {lost}: the array was deleted after Tracker.log, for example "
                "because it was donated to a compiled function. Log a copy, jnp.copy(x). Everything else "
                "was written."
            )

    def _write_entries(self, entries: collections.deque[_Entry]) -> None:
        """Pass the entries to the writers, and remove those that all writers have written."""
        newest = entries[-1] if entries else None
        for *numbers, step in jax.device_get([entry.numbers for entry in entries]):
            entry = entries[0]
            values = {name: float(x) for name, x in zip(entry.names, numbers, strict=False)}
            if not math.isfinite(step):
                entries.popleft()  # it would block all later entries
                raise ValueError(f"Tracker.log got the step {step}. Pass its number, such as 1.")
            for write in self._writers[entry.num_taken :]:
                write(int(step), values, entry.seconds)
                entry.num_taken += 1
            if self._console and entry is newest:
                print("  ".join([f"step {int(step)}", *(f"{name} {x:.4g}" for name, x in values.items())]))
            entries.popleft()


def _without_time(write: Writer) -> Callable[[int, Mapping[str, float], float], None]:
    return lambda step, values, _: write(step, values)


def _drop_deleted(entries: collections.deque[_Entry]) -> list[str]:
    """Remove the numbers whose arrays were deleted; returns descriptions of them."""
    lost = []
    for entry in [entry for entry in entries if entry.deleted]:
        *names, _ = entry.names
        *numbers, step = entry.numbers
        deleted = entry.deleted
        if len(numbers) in deleted:  # without its step number, the entry can't be written
            lost.append(f"the step of {', '.join(names)}")
            entries.remove(entry)
            continue
        lost += [f"{names[i]} of step {np.asarray(step)}" for i in deleted]
        kept = [i for i in range(len(entry.names)) if i not in deleted]
        entry.names = tuple(entry.names[i] for i in kept)
        entry.numbers = tuple(entry.numbers[i] for i in kept)
    return lost


def _scalar(name: str, value: Any) -> Any:
    """`value` as a number or an immutable array."""
    if isinstance(value, Variable):
        value = value.read_value()
    elif isinstance(value, Mirrored):
        value = value.to_plain()
    if isinstance(value, PerReplica):
        raise TypeError(
            f"Tracker.log got {name} as a PerReplica, with a value for each replica. Combine them first: "
            f'strategy.reduce("SUM", {name}, axis=None) for losses of rx.compute_average_loss, and "MEAN" '
            "for averages."
        )
    if is_tracer(value):
        raise ContextError(
            f"Tracker.log was called in a traced function (rx.function or jax.jit), where {name} has no "
            "concrete value. Return it from the compiled function and log it outside."
        )
    if not is_number(value) or not _is_real(value):
        raise TypeError(
            f"Tracker.log takes numbers, but {name} is {value!r} of type {type(value).__name__}."
        )
    if np.ndim(value) != 0:
        raise ValueError(
            f"Tracker.log takes scalars, but {name} has the shape {np.shape(value)}. Log its mean, or each "
            "element under its own name."
        )
    return value


def _is_real(value: Any) -> bool:
    """Whether it is a real number, not a complex number, a random key or text."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return not isinstance(value, complex)
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
