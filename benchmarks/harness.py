"""What all benchmarks share: contenders that take turns, rows, a table, a command line.

A *round* times each contender once, in changing order, and ratios are taken inside a round, so that
whatever else the machine does weighs on all of them. Tables show medians over the rounds. What a ratio may
be at most is in `limits.toml`; `suite.py` runs all benchmarks.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from limits import with_limit
from rows import Row, table

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


Measure = Callable[[Any, int], float]


class Steps:
    """A contender in this process: a call makes one step, or several."""

    def __init__(self, step: Step, steps_per_call: int = 1) -> None:
        self._step, self._steps_per_call = step, steps_per_call

    def __call__(self, num_steps: int) -> float:
        """The seconds per step of about `num_steps` steps."""
        num_calls = max(1, round(num_steps / self._steps_per_call))
        return step_seconds(self._step, num_calls) / self._steps_per_call

    def results(self, num_steps: int) -> list[float]:
        """What the first steps compute; to be called once."""
        found: list[float] = []
        while len(found) < num_steps:
            found += np.ravel(jax.device_get(self._step())).tolist()
        return found[:num_steps]


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The times of each contender, round by round."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratios(self, name: str, baseline: str) -> list[float]:
        """How many times the baseline's time, in each round."""
        pairs = zip(self.seconds[name], self.seconds[baseline], strict=True)
        return [mine / other for mine, other in pairs]

    def fastest(self, names: Sequence[str]) -> str:
        return min(names, key=self.median)


MOST_ROUNDS = "REPLICAX_BENCH_ROUNDS"  # of the environment, which workers inherit


def rounds_of(count: int) -> range:
    """So many rounds, or as many as `--rounds` allows."""
    return range(min(count, int(os.environ.get(MOST_ROUNDS, count))))


def by_calling(contender: Callable[[int], float], num_steps: int) -> float:
    """The measure for contenders that time themselves."""
    return contender(num_steps)


def take_turns(
    contenders: Mapping[str, Any], measure: Measure = by_calling, *, num_rounds: int, num_steps: int
) -> Rounds:
    """Measure all contenders once in each round, in changing order."""
    for contender in contenders.values():
        measure(contender, max(3, num_steps // 4))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    with no_garbage_collection():
        for i in rounds_of(num_rounds):
            first = i % len(names)
            for name in names[first:] + names[:first]:
                seconds[name].append(measure(contenders[name], num_steps))
            gc.collect()
    return Rounds(seconds)


# Another process beside this one.

ANSWER_SECONDS = 600.0


class ProgramFailed(RuntimeError):
    """A program beside this one ended, or did not answer in time."""


class ProgramBeside:
    """A process that makes steps of its own whenever it is asked to."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process, self._errors = process, errors

    def __call__(self, num_steps: int) -> float:
        """The seconds per step of `num_steps` steps."""
        return self._ask(num_steps)[0]

    def results(self, num_steps: int) -> list[float]:
        """What `num_steps` steps computed, for programs that say so."""
        return self._ask(num_steps)[1:]

    def _ask(self, num_steps: int) -> list[float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        watch = threading.Timer(ANSWER_SECONDS, self._process.kill)
        watch.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                print(num_steps, file=self._process.stdin, flush=True)
            for line in self._process.stdout:
                if line.startswith("seconds "):
                    return [float(word) for word in line.split()[1:]]
        finally:
            watch.cancel()
        last = "".join(self._errors.read_text(errors="replace").splitlines(keepends=True)[-10:])
        raise ProgramFailed(f"the process ended, or did not answer in {ANSWER_SECONDS:.0f} s:\n{last}")


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
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "errors"), "w") as errors:
        np.savez(Path(folder, "work.npz"), **arrays)
        process = subprocess.Popen(
            [python, str(Path(__file__).with_name(program)), str(Path(folder, "work.npz"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield ProgramBeside(process, Path(errors.name))
        finally:
            process.kill()
            process.wait()


# Other frameworks.

Peers = Mapping[str, tuple[str, str]]
"""For each title, the module that it needs and the program next to this one that measures it."""

PEER_FOLDERS = Path(__file__).parents[1] / "build" / "peers"
_pythons: list[str] = [sys.executable]


@functools.cache
def python_with(module: str) -> str | None:
    """A Python whose environment has a module: this one, one of `--peers`, or of `make bench-peers`."""
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    made = sorted(str(path) for path in PEER_FOLDERS.glob("*/bin/python"))
    for python in (*_pythons, *made):
        if subprocess.run([python, "-c", find], check=False).returncode == 0:
            return python
    return None


def pythons_of(peers: Peers) -> dict[str, str]:
    """The Python of each peer that is installed, by title."""
    found = {title: python_with(module) for title, (module, _) in peers.items()}
    return {title: python for title, python in found.items() if python is not None}


def start_peers(
    stack: contextlib.ExitStack, peers: Peers, **arrays: np.ndarray
) -> dict[str, ProgramBeside]:
    """Start the programs of the peers that are installed."""
    return {
        title: stack.enter_context(program_beside(peers[title][1], python, **arrays))
        for title, python in pythons_of(peers).items()
    }


def working_peers(peers: dict[str, ProgramBeside], num_steps: int) -> dict[str, list[float]]:
    """The first results of each peer; one that fails is taken out of `peers`, with a message."""
    results: dict[str, list[float]] = {}
    for title, peer in list(peers.items()):
        try:
            results[title] = peer.results(num_steps)
        except ProgramFailed as error:
            print(f"{title} is left out: {error}", file=sys.stderr)
            del peers[title]
    return results


# Rows from rounds.


def shown(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.1:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def compare(rounds: Rounds, what: str, ours: str, baselines: Sequence[str], name: str | None = None) -> Row:
    """`ours` against the fastest of `baselines`; `name` is what to call that."""
    baseline = rounds.fastest(baselines)
    ratios = rounds.ratios(ours, baseline)
    value = shown(rounds.median(baseline))
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return Row(
        what=what,
        ours=ours,
        our_value=shown(rounds.median(ours)),
        baseline=name or baseline,
        baseline_value=value if name is None else f"{value} ({baseline})",
        ratio=statistics.median(ratios),
        spread=(low, high),
    )


def compare_or_dash(rounds: Rounds, what: str, ours: str, baseline: str) -> Row:
    """`ours` against a peer, which may be missing."""
    if baseline in rounds.seconds:
        return compare(rounds, what, ours, [baseline])
    return Row(what, ours, shown(rounds.median(ours)), baseline, "-", math.nan)


# The command line.

Benchmarks = Mapping[str, Callable[[bool], list[Row]]]
"""By name; each is told whether to be quick."""


def run(
    description: str,
    benchmarks: Benchmarks,
    num_devices: int,
    points: Mapping[str, Any] | None = None,
) -> int:
    """Run the benchmarks that the command line names, print the table; 1 if a limit was exceeded.

    `points` is what the benchmarks have noted beside their rows, for plots.
    """
    arguments = _parsed_arguments(description, list(benchmarks))
    _pythons.extend(arguments.peers)
    if arguments.rounds is not None:
        os.environ[MOST_ROUNDS] = str(arguments.rounds)
    rx.set_cpu_devices(num_devices)
    program = Path(sys.argv[0]).stem
    rows: list[Row] = []
    start, load = time.perf_counter(), os.getloadavg()[0]
    for name in arguments.only:
        print(f"{program} {name} ...", file=sys.stderr, flush=True)
        rows += [
            with_limit(row, program, quick=arguments.quick) for row in benchmarks[name](arguments.quick)
        ]
    print(table(rows))
    if arguments.json is not None:
        found = {"rows": [dataclasses.asdict(row) for row in rows], **_circumstances(), "load": load}
        found |= {"quick": arguments.quick, "seconds": time.perf_counter() - start, "points": points or {}}
        arguments.json.write_text(json.dumps(found))
    return int(not arguments.no_check and not all(row.passed for row in rows))


def _circumstances() -> dict[str, Any]:
    """What the numbers were measured with."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "device": jax.devices()[0].device_kind,
        "num_cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {"jax": jax.__version__, "replicax": rx.__version__},
    }


def _parsed_arguments(description: str, names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no peers, wider limits")
    parser.add_argument("--only", default=",".join(names), help=f"some of {','.join(names)}")
    parser.add_argument("--rounds", type=int, help="at most so many rounds")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--no-check", action="store_true", help="do not fail on an exceeded limit")
    parser.add_argument(
        "--peers", action="append", default=[], help="a Python with other frameworks (can be repeated)"
    )
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set(names):
        parser.error(f"unknown benchmark {sorted(unknown)}; choose from {','.join(names)}")
    return arguments
