"""What can be asked on the command line, and who answers.

Exit status: 0 if all went well; 1 if what was asked did not (a check failed, the demo learned too little);
2 if it could not be tried, for a bad argument or a missing package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from replicax.cli._extras import MissingExtraError
from replicax.errors import DeviceError

__all__ = ["main"]

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
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return options.run(options)
    except (MissingExtraError, DeviceError) as error:
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
        type=_positive,
        metavar="N",
        help="how many devices compute; by default all GPUs, or 4 virtual CPU devices",
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
