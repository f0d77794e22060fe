"""`python -m replicax launch`: its options and their validation."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from replicax.cli._managers import explain_manager
from replicax.cli._program import checked_program, positive

__all__ = ["add_launch"]

_USAGE = """\
python -m replicax launch --workers N [options] script.py [arguments of the script ...]
       python -m replicax launch --workers N [options] -m module [arguments of the module ...]"""

_EPILOG = """\
exit status: 0 if all workers succeeded; otherwise that of the worker that failed first, or 128 + n if
signal n killed it; 2 if nothing was started. Ctrl-C and SIGTERM are forwarded to the workers; a second
Ctrl-C kills them.

The file LOG_DIR/workers has the number of workers. Write another number to restart with that many:
  echo 2 > LOG_DIR/workers
"""


def add_launch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "launch",
        help="run a program on several workers on this machine, and restart them after a failure",
        description="Run a program in N processes on this machine, as one cluster. Each gets TF_CONFIG and "
        "its devices, so that `rx.MultiWorkerMirroredStrategy()` joins the others. Output is prefixed with "
        "the worker's rank, and no process is left behind.",
        usage=_USAGE,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workers", type=positive, metavar="N", help="number of processes; required")
    parser.add_argument(
        "--devices-per-worker",
        type=positive,
        metavar="M",
        help="GPUs per worker, or virtual CPU devices on a machine without GPUs; by default the GPUs are "
        "divided evenly, or each worker gets one CPU device",
    )
    parser.add_argument(
        "--max-restarts",
        type=_non_negative,
        metavar="R",
        default=0,
        help="how often to restart all workers after one has failed; the program resumes from its "
        "checkpoint (default: 0)",
    )
    parser.add_argument(
        "--min-workers",
        type=positive,
        metavar="K",
        help="drop a worker that fails twice in a row, as long as K workers remain (default: N)",
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="folder for the workers' logs, and for compiled programs if there are restarts (default: a "
        "temporary folder, which is kept)",
    )
    parser.add_argument(
        "--grace-period",
        type=_seconds,
        metavar="SECONDS",
        default=30.0,
        help="how long workers may take to exit after Ctrl-C or SIGTERM (default: 30)",
    )
    parser.add_argument(
        "--force", action="store_true", help="start workers even as part of a Slurm, Kubernetes or Ray job"
    )
    parser.set_defaults(run=_run, fail=parser.error)


def _run(options: argparse.Namespace) -> int:
    from replicax.launch import LaunchOptions, launch

    command = [sys.executable, *checked_program(options)]
    _check_numbers(options)
    if not options.force and (advice := explain_manager(os.environ, " ".join(options.program))):
        options.fail(f"{advice}\nOr pass --force to start {options.workers} workers in this process anyway")
    return launch(
        LaunchOptions(
            command=command,
            num_workers=options.workers,
            log_dir=_log_dir(options.log_dir),
            devices_per_worker=options.devices_per_worker,
            min_workers=options.min_workers,
            max_restarts=options.max_restarts,
            grace_seconds=options.grace_period,
        )
    )


def _check_numbers(options: argparse.Namespace) -> None:
    if options.workers is None:
        hint = " before the script" if "--workers" in options.program else ""
        options.fail(f"--workers N is required{hint}")
    elif (options.min_workers or 1) > options.workers:
        options.fail(f"--min-workers {options.min_workers} is more than --workers {options.workers}")


def _log_dir(chosen: Path | None) -> Path:
    if chosen is None:
        return Path(tempfile.mkdtemp(prefix="replicax-launch-"))
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen.resolve()


def _non_negative(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer, 0 or more, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, 0 or more, got {text!r}")
    return number
