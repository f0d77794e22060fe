"""The commands, their options and exit statuses.

Exit status: 0 for success; 1 if a check failed or the demo's accuracy is too low; 2 if the command could
not run because of a bad argument, a missing package or device, or a folder that is not writable; 130 if it
was interrupted; 141 if its output was closed early, as by `| head`. `launch` returns the status of its
workers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from replicax._version import __version__
from replicax.cli._extras import MissingExtraError
from replicax.cli._launch import add_launch
from replicax.cli._program import positive, split_program
from replicax.cli._report import add_report
from replicax.errors import CheckpointError, ContextError, DeviceError

__all__ = ["main"]

_MOST_REPLICAS = 64  # one example each; more virtual CPU devices would take too many threads

_EPILOG = """\
first steps:
  python -m replicax doctor     check this machine: packages, devices, collectives, training
  python -m replicax demo       train a small classifier on all devices in half a minute
  python -m replicax launch --workers 2 train.py     run a program on two workers
  python -m replicax report train.py     find out why its steps are not faster

documentation: docs/ in the source, and help(replicax)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: the command line without the program's name; None means `sys.argv[1:]`.

    Returns:
        The exit status.
    """
    try:
        try:
            return _run_command(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:  # for example, a full disk
        _discard_output()
        print(f"replicax: can't print: {error}", file=sys.stderr)
        return 2


def _discard_output() -> None:
    """Discard the remaining output, so that Python does not report an error about it at exit."""
    with contextlib.suppress(OSError):  # stdout may have no file descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())
        finally:
            os.close(nowhere)


def _run_command(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    own, program = split_program(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(own, argparse.Namespace(program=program))
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return options.run(options)
    except BrokenPipeError:
        raise
    except (OSError, MissingExtraError, DeviceError, CheckpointError, ContextError) as error:
        print(f"replicax {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nreplicax {options.command}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m replicax",
        description="Replicax: the tf.distribute programming model on JAX.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    _add_demo(commands)
    _add_doctor(commands)
    add_launch(commands)
    add_report(commands)
    return parser


def _version() -> str:
    import jax

    return f"replicax {__version__} (jax {jax.__version__}, Python {sys.version.split()[0]})"


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="train a small image classifier on all devices, stop, resume, and draw a picture",
        description="Train a classifier of handwritten digits on all GPUs or on virtual CPU devices, stop "
        "in the middle, resume from a checkpoint, and draw a picture.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument(
        "--strategy",
        choices=("mirrored", "one-device", "central-storage"),
        default="mirrored",
        help="the strategy to train with",
    )
    demo.add_argument(
        "--replicas",
        type=_num_replicas,
        metavar="N",
        help=f"number of devices, at most {_MOST_REPLICAS}; by default all GPUs, or 4 virtual CPUs",
    )
    demo.add_argument(
        "--epochs", type=positive, metavar="N", default=40, help="number of passes over the digits"
    )
    demo.add_argument(
        "--output", type=Path, metavar="DIR", default=Path("replicax_demo"), help="folder for the picture"
    )
    demo.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="also write metrics for TensorBoard there"
    )
    demo.add_argument("--profile", type=Path, metavar="DIR", help="also write a profile of ten steps there")
    demo.set_defaults(run=_run_demo)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check this machine: packages, devices, cluster, collectives, training, checkpoints",
        description="Check that Replicax works on this machine, and say what to do if it does not.",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    doctor.add_argument(
        "--only",
        nargs="+",
        metavar="WORD",
        default=[],
        help="run only the checks whose names contain one of these words, such as `all-reduce`",
    )
    doctor.set_defaults(run=_run_doctor)


def _num_replicas(text: str) -> int:
    number = positive(text)
    if number > _MOST_REPLICAS:
        raise argparse.ArgumentTypeError(
            f"expected at most {_MOST_REPLICAS}, got {text!r}: a step has {_MOST_REPLICAS} examples"
        )
    return number


def _run_demo(options: argparse.Namespace) -> int:
    from replicax.cli._demo import DemoOptions, run_demo

    return run_demo(
        DemoOptions(
            strategy=options.strategy,
            num_replicas=options.replicas,
            num_epochs=options.epochs,
            output=options.output,
            tensorboard=options.tensorboard,
            profile=options.profile,
        )
    )


def _run_doctor(options: argparse.Namespace) -> int:
    from replicax.cli._doctor import run_doctor

    return run_doctor(as_json=options.json, only=options.only)
