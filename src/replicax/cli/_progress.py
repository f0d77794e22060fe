"""The demo's progress: a live bar on a terminal, plain lines elsewhere, and the history of the metrics.

`Progress` is a writer for `rx.Tracker`. It gets metrics with a delay and for several steps at once, because
the tracker does not make the devices wait.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from replicax.cli._remaining import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

__all__ = ["History", "Progress"]

_SMOOTHED_STEPS = 20
_RATE_SECONDS = 0.25  # the interval over which throughput is measured
_LINE_SECONDS = 2.0
_TEXT_WIDTH = 90  # without the bar


@final
@dataclass
class History:
    """The metrics of every step, and samples of the throughput."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    rate_steps: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    resumed_at: int | None = None


@final
class Progress:
    """Shows and stores metrics.

    Args:
        console: where to show them.
        num_steps: the number of steps.
        batch_size: the number of examples per step.
    """

    def __init__(self, console: Console, num_steps: int, batch_size: int) -> None:
        """Nothing is shown before `training`."""
        self.history = History()
        self._console = console
        self._num_steps = num_steps
        self._batch_size = batch_size
        self._bar: Bar | None = None
        self._line = ""
        self._line_time = self._rate_time = self._rate = 0.0
        self._rate_step: int | None = None

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Show the bar, or print lines, while a part of the training runs."""
        self._rate_step, self._rate, self._line = None, 0.0, ""
        if not self._console.is_terminal:
            yield
            self._print_line()
            return
        from rich.progress import BarColumn, Progress, TextColumn

        width = min(40, max(8, self._console.width - _TEXT_WIDTH))
        columns = BarColumn(width), TextColumn("{task.description}")
        with Progress(*columns, console=self._console, refresh_per_second=10) as self._bar:
            self._bar.add_task("compiling the training step", total=self._num_steps)
            yield
        self._bar = None

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Store and show the metrics of a step."""
        history = self.history
        history.steps.append(step)
        history.losses.append(values["loss"])
        history.accuracies.append(values["accuracy"])
        self._measure_rate(step)
        self._line = self._describe(step, values["input_wait"])
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step, description=self._line)
        elif time.perf_counter() - self._line_time >= _LINE_SECONDS:
            self._print_line()

    def _measure_rate(self, step: int) -> None:
        now = time.perf_counter()
        if self._rate_step is None:  # skip the first step, which includes compilation
            self._rate_step, self._rate_time = step, now
            self._line_time = now
        elif now - self._rate_time >= _RATE_SECONDS:
            self._rate = (step - self._rate_step) * self._batch_size / (now - self._rate_time)
            self.history.rates.append(self._rate)
            self.history.rate_steps.append((step + self._rate_step) / 2)
            self._rate_step, self._rate_time = step, now

    def _describe(self, step: int, input_wait: float) -> str:
        loss, accuracy = (
            sum(numbers[-_SMOOTHED_STEPS:]) / len(numbers[-_SMOOTHED_STEPS:])
            for numbers in (self.history.losses, self.history.accuracies)
        )
        rate = f"{self._rate:6,.0f}" if self._rate else "     -"
        left = (self._num_steps - step) * self._batch_size / self._rate if self._rate else None
        remaining = f"  {duration(left)} left" if left else ""
        return (
            f"{step:4d}/{self._num_steps}  loss {loss:.4f}  accuracy {accuracy:6.1%}  "
            f"{rate} examples/s  input wait {input_wait:.1%}{remaining}"
        )

    def _print_line(self) -> None:
        if self._line:
            self._console.print(f"  step {self._line}", highlight=False, soft_wrap=True)
        self._line, self._line_time = "", time.perf_counter()
