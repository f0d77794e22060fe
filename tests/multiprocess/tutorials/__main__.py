"""TensorFlow's two multi-worker tutorials under `launch`, many times: the numbers must be the same.

    python -m tests.multiprocess.tutorials --runs 20
    python -m tests.multiprocess.tutorials --tensorflow PYTHON

The programs are `custom_loop.py` and `keras_fit.py`. The second command also runs them with TensorFlow, by
a Python that has it; initial weights and the order of the images differ there.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAMS = ("custom_loop", "keras_fit")
NUM_WORKERS = 2
_EPOCH = re.compile(r"Epoch: (\d+), accuracy: (\d+\.\d+), train_loss: (\d+\.\d+)")
_LIMIT_SECONDS = 600


def run_with_replicax(program, epochs, steps):
    """What each worker printed about its epochs: a list of (epoch, accuracy, loss) for each worker."""
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "logs")
        launch = ["-m", "replicax", "launch", "--workers", str(NUM_WORKERS), "--log-dir", str(logs)]
        result = subprocess.run(
            [sys.executable, *launch, *_command(program, folder, epochs, steps)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=_LIMIT_SECONDS,
        )
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
        return [_epochs_in(logs.joinpath(f"worker_{i}.log").read_text()) for i in range(NUM_WORKERS)]


def run_with_tensorflow(python, program, epochs, steps):
    """The same from TensorFlow's processes, which are started with one TF_CONFIG each."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(NUM_WORKERS)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    common = {"TUTORIAL_LIBRARY": "tensorflow", "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            subprocess.Popen(
                [python, *_command(program, folder, epochs, steps)],
                env=os.environ | common | {"TF_CONFIG": _config(addresses, i)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
            )
            for i in range(NUM_WORKERS)
        ]
        try:
            return [_epochs_in(worker.communicate(timeout=_LIMIT_SECONDS)[0]) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()


def _config(addresses, index):
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})


def _command(program, folder, epochs, steps):
    return ["-m", f"tests.multiprocess.tutorials.{program}", folder, str(epochs), str(steps)]


def _epochs_in(text):
    return [(int(epoch), float(accuracy), float(loss)) for epoch, accuracy, loss in _EPOCH.findall(text)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", nargs="+", default=PROGRAMS, choices=PROGRAMS)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--tensorflow", metavar="PYTHON", help="also TensorFlow, with this Python")
    arguments = parser.parse_args()
    for program in arguments.programs:
        seen = set()
        for i in range(arguments.runs):
            workers = run_with_replicax(program, arguments.epochs, arguments.steps)
            seen.update(tuple(worker) for worker in workers)
            print(f"{program}, run {i + 1}: {_shown(workers[0])}; {len(seen)} different so far", flush=True)
        if arguments.tensorflow:
            size = arguments.epochs, arguments.steps
            for worker in run_with_tensorflow(arguments.tensorflow, program, *size):
                print(f"{program}, TensorFlow: {_shown(worker)}", flush=True)


def _shown(epochs):
    return "accuracy " + ", ".join(f"{accuracy:.6f}" for _, accuracy, _ in epochs)


if __name__ == "__main__":
    main()
