"""What all benchmarks share: contenders that take turns, rows with targets, a table, a command line.

A *round* times each contender once, in changing order, and ratios are taken inside a round, so that
whatever else the machine does weighs on all of them. Tables show medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import replicax as rx

Step = Callable[[], Any]
"""One training step; returns arrays that are ready when the step is done."""


# Timing.


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def step_seconds(step: Step, num_steps: int) -> float:
    """Seconds per step when steps are queued one after the other."""
    result = None
    start = time.perf_counter()
    for _ in range(num_steps):
        result = step()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / num_steps


def host_seconds(step: Step, num_steps: int) -> float:
    """The calling thread's own time per step until the call returns; no step overlaps another."""
    seconds = []
    for _ in range(num_steps):
        start = time.thread_time()
        result = step()
        seconds.append(time.thread_time() - start)
        jax.block_until_ready(result)
    return statistics.median(seconds)


Measure = Callable[[Step, int], float]


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The times of each contender, round by round."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, baseline: str) -> float:
        """How many times the baseline's time, as the median of the rounds' ratios."""
        pairs = zip(self.seconds[name], self.seconds[baseline], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    def fastest(self, names: Sequence[str]) -> str:
        return min(names, key=self.median)


def take_turns(contenders: dict[str, Step], measure: Measure, *, num_rounds: int, num_steps: int) -> Rounds:
    """Measure all contenders once in each round, in changing order."""
    for step in contenders.values():
        measure(step, max(3, num_steps // 4))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    with no_garbage_collection():
        for i in range(num_rounds):
            first = i % len(names)
            for name in names[first:] + names[:first]:
                seconds[name].append(measure(contenders[name], num_steps))
            gc.collect()
    return Rounds(seconds)


# Another process beside this one.


class ProgramBeside:
    """A process that makes steps of its own whenever it is asked to."""

    def __init__(self, program: str, process: subprocess.Popen[str]) -> None:
        self._program, self._process = program, process

    def __call__(self, num_steps: int) -> float:
        """The seconds per step of `num_steps` steps."""
        return self._ask(num_steps)[0]

    def results(self, num_steps: int) -> list[float]:
        """What `num_steps` steps computed, for programs that say so."""
        return self._ask(num_steps)[1:]

    def _ask(self, num_steps: int) -> list[float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(num_steps, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("seconds "):
                return [float(word) for word in line.split()[1:]]
        raise RuntimeError(f"the process ended; run benchmarks/{self._program} to see why")


@contextlib.contextmanager
def program_beside(
    program: str, python: str = sys.executable, **arrays: np.ndarray
) -> Iterator[ProgramBeside]:
    """Start a program that measures `num_steps` steps of its own whenever it is asked to.

    Args:
        program: a file next to this one, called with a file of `arrays`. It reads a number of steps from
            each line of its standard input and answers with "seconds", the seconds per step and, if it
            likes, what each step computed.
        python: the Python that runs it.
        **arrays: what it works on.
    """
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "work.npz"), **arrays)
        process = subprocess.Popen(
            [python, str(Path(__file__).with_name(program)), str(Path(folder, "work.npz"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield ProgramBeside(program, process)
        finally:
            process.kill()
            process.wait()


_peers_python = sys.executable


def peers_python() -> str:
    """The Python of the environment with other frameworks: `--peers`, or else this one."""
    return _peers_python


def is_installed(module: str, python: str) -> bool:
    """Whether an environment has a module."""
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", find], check=False).returncode == 0


# The report.


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the report: a comparison, its ratio, and what the ratio may be at most."""

    what: str
    baseline: str
    ours: str
    ratio: float
    at_most: float | None

    @property
    def passed(self) -> bool:
        return self.at_most is None or self.ratio <= self.at_most


def shown(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def compare(rounds: Rounds, what: str, ours: str, baselines: Sequence[str], at_most: float | None) -> Row:
    """`ours` against the fastest of `baselines`."""
    baseline = rounds.fastest(baselines)
    return Row(
        what,
        f"{shown(rounds.median(baseline))} ({baseline})",
        shown(rounds.median(ours)),
        rounds.ratio(ours, baseline),
        at_most,
    )


def table(rows: Sequence[Row]) -> str:
    cells = [("measured", "baseline", "Replicax", "ratio", "target", "")]
    for row in rows:
        target, verdict = "", ""
        if row.at_most is not None:
            target, verdict = f"≤{row.at_most:.2f}", "ok" if row.passed else "MISSED"
        cells.append((row.what, row.baseline, row.ours, _ratio(row), target, verdict))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [" | ".join(map(str.ljust, line, widths)) for line in cells]
    rule = " | ".join("-" * max(width, 3) for width in widths)
    return "\n".join(f"| {line} |" for line in (lines[0], rule, *lines[1:]))


def _ratio(row: Row) -> str:
    return "-" if math.isnan(row.ratio) else f"{row.ratio:.3f}"


def run(description: str, benchmarks: dict[str, Callable[[bool], list[Row]]], num_devices: int) -> int:
    """Run the benchmarks that the command line names, print the table; 1 if a target was missed."""
    global _peers_python
    arguments = _parsed_arguments(description, list(benchmarks))
    _peers_python = arguments.peers
    rx.set_cpu_devices(num_devices)
    rows: list[Row] = []
    for name in arguments.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += benchmarks[name](arguments.quick)
    print(table(rows))
    if arguments.markdown is not None:
        arguments.markdown.write_text(table(rows) + "\n")
    return int(not arguments.no_check and not all(row.passed for row in rows))


def _parsed_arguments(description: str, names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, noisier numbers")
    parser.add_argument("--only", default=",".join(names), help=f"some of {','.join(names)}")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    parser.add_argument("--no-check", action="store_true", help="do not fail on a missed target")
    parser.add_argument("--peers", default=sys.executable, help="the Python of other frameworks")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set(names):
        parser.error(f"unknown benchmark {sorted(unknown)}; choose from {','.join(names)}")
    return arguments
