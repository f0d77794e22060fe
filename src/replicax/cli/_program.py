"""Commands that run a program: splits their own arguments from the program and its arguments."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

__all__ = ["checked_program", "positive", "split_program"]

_OPTIONS_WITH_VALUE = {
    "launch": (
        "--workers",
        "--devices-per-worker",
        "--min-workers",
        "--max-restarts",
        "--log-dir",
        "--grace-period",
    ),
    "report": ("--steps", "--warmup", "--output"),
}


def split_program(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the command's own arguments, and the program with its arguments.

    >>> from replicax.cli._program import split_program
    >>> split_program(["launch", "--workers", "2", "train.py", "--workers", "8"])
    (['launch', '--workers', '2'], ['train.py', '--workers', '8'])
    >>> split_program(["demo", "--epochs", "3"])
    (['demo', '--epochs', '3'], [])
    """
    if not arguments or arguments[0] not in _OPTIONS_WITH_VALUE:
        return list(arguments), []
    with_value, end = _OPTIONS_WITH_VALUE[arguments[0]], 1
    while end < len(arguments) and arguments[end].startswith("-") and arguments[end] not in ("-m", "--"):
        end += 2 if arguments[end] in with_value else 1
    program = list(arguments[end:])
    return list(arguments[:end]), program[1:] if program[:1] == ["--"] else program


def checked_program(options: argparse.Namespace) -> list[str]:
    """The program of a command; exits with an error if there is none."""
    program: list[str] = options.program
    if not program:
        options.fail("no program: pass a script, or -m and a module, after the options")
    if program[0] == "-m":
        _check_module(options, program[1:])
    elif not Path(program[0]).exists():
        options.fail(f"there is no file {program[0]!r} in {Path.cwd()}")
    return program


def _check_module(options: argparse.Namespace, rest: list[str]) -> None:
    if not rest:
        options.fail("-m needs the name of a module")
    try:
        found = importlib.util.find_spec(rest[0])
    except ImportError:
        found = None
    if found is None:
        options.fail(f"there is no module {rest[0]!r} that Python can import from {Path.cwd()}")


def positive(text: str) -> int:
    """The argparse type of an integer, 1 or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer, 1 or more, got {text!r}")
    return number
