"""What can be asked on the command line, and who answers.

Exit status: 0 if all went well; 1 if what was asked did not (a check failed, the demo learned too little);
2 if it could not be tried, for a bad argument, a missing package or device, or a folder that it can't write
in; 130 if it was interrupted; 141 if nobody read its output to the end, as with `| head`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from replicax.cli._extras import MissingExtraError
from replicax.errors import CheckpointError, DeviceError

__all__ = ["main"]

_MOST_REPLICAS = 64  # as many as a step has examples; virtual CPU devices take memory and threads

_EPILOG = """\
a first look:
  python -m replicax doctor     is everything here that Replicax needs, and does it compute?
  python -m replicax demo       a small classifier, trained on all devices in half a minute

documentation: docs/ in the source, and help(replicax)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Args:
        arguments: what follows the program's name; None takes those of this process.

    Returns:
        The exit status.
    """
    try:
        try:
            return _do(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere()
        return 141
    except OSError as error:  # a disk that is full
        _write_nowhere()
        print(f"replicax: can't print: {error}", file=sys.stderr)
        return 2


def _write_nowhere() -> None:
    """Drop what is left to print, which Python would complain about at its end."""
    with contextlib.suppress(OSError):  # there need not be a file behind it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())
        finally:
            os.close(nowhere)


def _do(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return options.run(options)
    except BrokenPipeError:
        raise
    except (OSError, MissingExtraError, DeviceError, CheckpointError) as error:
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
    return parser


def _version() -> str:
    import jax

    return (
        f"replicax {metadata.version('replicax')} (jax {jax.__version__}, Python {sys.version.split()[0]})"
    )


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="train a small image classifier on all devices, stop, resume, and draw a picture",
        description="Train a classifier of handwritten digits on the GPUs that there are, or on a CPU that "
        "poses as several devices; stop in the middle and resume from a checkpoint; draw a picture.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument(
        "--strategy",
        choices=("mirrored", "one-device", "central-storage"),
        default="mirrored",
        help="where variables live",
    )
    demo.add_argument(
        "--replicas",
        type=_num_replicas,
        metavar="N",
        help=f"how many devices compute, at most {_MOST_REPLICAS}; by default all GPUs, or 4 virtual CPUs",
    )
    demo.add_argument(
        "--epochs", type=_positive, metavar="N", default=40, help="how often to go over the digits"
    )
    demo.add_argument(
        "--output", type=Path, metavar="DIR", default=Path("replicax_demo"), help="where the picture goes"
    )
    demo.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="also write TensorBoard's files there"
    )
    demo.add_argument("--profile", type=Path, metavar="DIR", help="also record ten steps there")
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
        help="only the checks whose names contain one of these words, such as `all-reduce`",
    )
    doctor.set_defaults(run=_run_doctor)


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return number


def _num_replicas(text: str) -> int:
    number = _positive(text)
    if number > _MOST_REPLICAS:
        raise argparse.ArgumentTypeError(
            f"expected {_MOST_REPLICAS} at most, got {text!r}: a step has {_MOST_REPLICAS} examples"
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
