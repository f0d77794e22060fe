"""`rx.Tracker`: the numbers of a training run, written down without making the devices wait.

A loss is an array that a device may not have computed yet. Reading it at once would make Python wait, and
the device after it, in every step. So the arrays are kept as they are, and those that have been computed
are read together, every so many steps.
"""

from __future__ import annotations

import atexit
import collections
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

from replicax._jax import ArrayImpl, is_tracer
from replicax.errors import ContextError
from replicax.tracking._processes import on_first_process
from replicax.tracking._tensorboard import TensorBoardWriter
from replicax.values import Mirrored, PerReplica, is_number
from replicax.variables import Variable

__all__ = ["Tracker"]

Writer = Callable[[int, Mapping[str, float]], None]


@final
@dataclass(frozen=True)
class _Entry:
    """What was logged for one step, as it came; the number of the step is the last of `numbers`."""

    names: tuple[str, ...]
    numbers: tuple[Any, ...]
    seconds: float

    @property
    def is_ready(self) -> bool:
        arrays: list[Any] = [x for x in self.numbers if isinstance(x, ArrayImpl)]
        return all(array.is_ready() for array in arrays)


@final
class Tracker:
    """Writes down the numbers of training steps: for TensorBoard, on the console, or as you like.

    `log` keeps what it is given and returns at once. Every so many calls, what the devices have computed by
    then is read and written; Python waits for them only if they are further behind than that. Of several
    processes the first one writes, and the others may call everything just the same.

    Close a tracker, or use it in a `with` block: that writes the rest. Otherwise the program's end does.

    Args:
        tensorboard: a folder for TensorBoard's files; needs `pip install 'replicax[tensorboard]'`.
        console: whether to print a line each time, with the newest numbers.
        writers: functions that are called with each step and its numbers, a dict of floats.
        every: after how many calls of `log` to write.

    Raises:
        ImportError: `tensorboard` was given, and tensorboardX is not installed.
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
        console: bool = False,
        writers: Iterable[Writer] = (),
        every: int = 10,
    ) -> None:
        """Nothing is written, and JAX is not started, before the first `log`."""
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"rx.Tracker(every={every!r}): pass a number of steps, 1 or more.")
        self._tensorboard = None if tensorboard is None else TensorBoardWriter(tensorboard)
        self._console = console
        self._writers = tuple(writers)
        self._every = every
        self._num_logged = 0
        self._pending: collections.deque[_Entry] = collections.deque()
        self._closed = False
        atexit.register(self.close)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, step: Any, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Take down numbers of a step, without waiting for them.

        Args:
            step: the number of the step; an array or a variable, such as `optimizer.iterations`, will do.
            values: numbers by name, for names such as "train/loss".
            more: numbers by name. All are scalars: Python's, NumPy's, arrays, or variables, which are
                taken as they are now.

        Raises:
            ContextError: it was called in a function that is being compiled.
            TypeError: a value is no number, or has a part on each replica.
            ValueError: a value is no scalar.

        >>> with rx.Tracker(console=True) as tracker:
        ...     tracker.log(1, {"train/loss": jnp.float32(0.25)}, learning_rate=1e-3)
        step 1  train/loss 0.25  learning_rate 0.001
        """
        if self._closed:
            raise ValueError("This tracker was closed; make another one.")
        numbers = {**(values or {}), **more}
        names = (*numbers, "step")
        scalars = tuple(_scalar(name, x) for name, x in zip(names, (*numbers.values(), step), strict=True))
        if not on_first_process():
            return
        self._pending.append(_Entry(names, scalars, time.time()))
        self._num_logged += 1
        if self._num_logged % self._every == 0:
            self._write(at_most_left=self._every)

    def flush(self) -> None:
        """Wait for everything that was logged, and write it.

        >>> tracker = rx.Tracker(console=True)
        >>> tracker.log(1, loss=0.5)
        >>> tracker.flush()
        step 1  loss 0.5
        >>> tracker.close()
        """
        self._write(at_most_left=0)

    def close(self) -> None:
        """Wait for everything that was logged, write it, and close the files. A second time does nothing.

        >>> tracker = rx.Tracker()
        >>> tracker.close()
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._write(at_most_left=0)
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _write(self, at_most_left: int) -> None:
        """Write the oldest entries: those whose numbers are there, and all but `at_most_left`."""
        entries = []
        while self._pending and (len(self._pending) > at_most_left or self._pending[0].is_ready):
            entries.append(self._pending.popleft())
        for entry, (*numbers, step) in zip(
            entries, jax.device_get([e.numbers for e in entries]), strict=True
        ):
            values = {name: float(x) for name, x in zip(entry.names, numbers, strict=False)}
            if self._tensorboard is not None:
                self._tensorboard.write(int(step), values, entry.seconds)
            for write in self._writers:
                write(int(step), values)
            if self._console and entry is entries[-1]:
                print("  ".join([f"step {int(step)}", *(f"{name} {x:.4g}" for name, x in values.items())]))
        if self._tensorboard is not None:
            self._tensorboard.flush()


def _scalar(name: str, value: Any) -> Any:
    """`value` as something that can be kept: a number, or an array that nobody will change."""
    if isinstance(value, Variable):
        value = value.read_value()
    elif isinstance(value, Mirrored):
        value = value.to_plain()
    if isinstance(value, PerReplica):
        raise TypeError(
            f"Tracker.log got {name} as a PerReplica, with a value for each replica. Combine them first: "
            f'strategy.reduce("MEAN", {name}, axis=None).'
        )
    if is_tracer(value):
        raise ContextError(
            f"Tracker.log was called while JAX traces (in rx.function or jax.jit), where {name} is no "
            "number yet. Return it from the compiled function, and log it outside."
        )
    if not is_number(value) or isinstance(value, complex):
        raise TypeError(
            f"Tracker.log takes numbers, but {name} is {value!r} of type {type(value).__name__}."
        )
    if np.ndim(value) != 0:
        raise ValueError(
            f"Tracker.log takes scalars, but {name} has the shape {np.shape(value)}. Log its mean, or its "
            "entries under names of their own."
        )
    return value
