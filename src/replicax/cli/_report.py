"""`python -m replicax report`: profiles some steps of a program and says where their time goes."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from replicax.cli._program import checked_program, positive
from replicax.cli._remaining import RemainingTime

__all__ = ["add_report"]

_PROGRESS_SECONDS = 5.0

_USAGE = """\
python -m replicax report [options] script.py [arguments of the script ...]
       python -m replicax report [options] -m module [arguments of the module ...]"""

_EPILOG = """\
The step is the first function made by rx.function that is called often enough. N steps are profiled, and N
more are timed without the profiler; then the program is stopped, unless --keep-going is given.

exit status: 0; 1 if the program failed; 2 if nothing was recorded.
"""


class _EnoughStepsError(BaseException):
    """Stops the program; not an `Exception`, so that the program does not catch it."""


def add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="profile some steps of a training program and find out why they are not faster",
        description="Run a program, profile some of its steps, and split their time into input wait, host, "
        "compilation, imbalance between replicas, collectives and computation.",
        usage=_USAGE,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--steps", type=positive, metavar="N", default=20, help="number of steps to profile (default: 20)"
    )
    parser.add_argument(
        "--warmup", type=positive, metavar="N", default=3, help="number of steps to skip first (default: 3)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("replicax_report.html"),
        help="the page for a browser (default: replicax_report.html)",
    )
    parser.add_argument("--keep-going", action="store_true", help="let the program run to its end")
    parser.add_argument("--no-compare", action="store_true", help="do not time the step on one device")
    parser.set_defaults(run=_run, fail=parser.error)


def _run(options: argparse.Namespace) -> int:
    from replicax.reporting import Recorder, make_report

    program = checked_program(options)
    _check_folder(options.output)

    def stop() -> None:
        if not options.keep_going:
            raise _EnoughStepsError

    recorder = Recorder(options.steps, options.warmup, stop, _Progress(options.warmup + 2 * options.steps))
    try:
        with contextlib.suppress(_EnoughStepsError), recorder.watching():
            _run_program(program)
    except Exception:
        traceback.print_exc()
        return 1
    report = make_report(recorder, compare=not options.no_compare)
    print(report)
    print(f"\nthe same as a page for a browser: {report.save(options.output)}")
    return 0


class _Progress:
    """Prints every few seconds how many steps are done, in lines between the program's own output."""

    def __init__(self, total: int) -> None:
        self._total, self._remaining = total, RemainingTime(total)
        self._printed = time.monotonic()

    def __call__(self, done: int) -> None:
        left = self._remaining(done)
        if left and time.monotonic() - self._printed >= _PROGRESS_SECONDS:
            self._printed = time.monotonic()
            print(f"replicax report: {done} of {self._total} steps, {left}", file=sys.stderr, flush=True)


def _check_folder(output: Path) -> None:
    """Raise before the program runs if the page can't be written."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(output.parent, os.W_OK):
        raise PermissionError(f"can't write {output}: the folder is not writable")


def _run_program(program: list[str]) -> None:
    with _arguments(program):
        try:
            if program[0] == "-m":
                runpy.run_module(program[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program[0], run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


@contextlib.contextmanager
def _arguments(program: list[str]) -> Iterator[None]:
    """A `with` block with `sys.argv` and `sys.path` as Python sets them up for the program."""
    module = program[0] == "-m"
    before = sys.argv, sys.path
    sys.argv = program[1:] if module else program
    sys.path = [str(Path.cwd() if module else Path(program[0]).resolve().parent), *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = before
