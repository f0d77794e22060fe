"""The program of `test_restarts.py`: it trains undisturbed, and then again while workers are killed.

Usage: `python -m tests.multiprocess.restarted FOLDER`, by `launch` with restarts.
"""

import os
import signal
import sys
from pathlib import Path

from tests.multiprocess.resumable import RANK, RESTART, train

import replicax as rx

NUM_STEPS = 14
DIES_AT = {0: (1, 4), 1: (0, 8), 2: (0, 10)}  # in which start: which rank, after which step


def main():
    folder, strategy = Path(sys.argv[1]), rx.MultiWorkerMirroredStrategy()

    def note(name, step, loss):
        if RANK == 0:
            with (folder / name).open("a") as file:
                file.write(f"{step} {loss!r} {strategy.num_replicas_in_sync}\n")

    def note_or_die(step, loss):
        note("losses", step, loss)
        if DIES_AT.get(RESTART) == (RANK, step):
            os.kill(os.getpid(), signal.SIGKILL)

    if RESTART == 0:
        train(strategy, folder / "undisturbed", NUM_STEPS, lambda *step: note("expected", *step))
    print("from step", train(strategy, folder / "checkpoints", NUM_STEPS, note_or_die))


if __name__ == "__main__":
    main()
