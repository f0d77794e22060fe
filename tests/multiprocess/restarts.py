"""Workers killed at random times, restarted by `launch`: is the loss curve that of an undisturbed run?

    python -m tests.multiprocess.restarts 50          # 50 restarts with two workers
    python -m tests.multiprocess.restarts 10 --fewer  # the number of workers changes meanwhile

Each run is killed several times: SIGKILL to a random worker in a random phase. A line for each kill says
who was killed and where. With the same number of workers all losses must be equal, bit by bit; with another
number, nearly equal.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = Path(__file__).with_name("resumable.py")
NUM_STEPS, PAUSE = 60, 0.05
STARTING = {"importing": -3, "joining": -2, "compiling": -1}  # the phases before step 0
LONGEST_PAUSE = 0.5
KILLS_PER_RUN = 10
SECONDS_TO_END = 600


def launch(folder, num_workers, *options):
    """Start `launch` with the program; its output goes to FOLDER/output."""
    command = [sys.executable, "-m", "replicax", "launch", "--workers", str(num_workers), *options]
    command += ["--log-dir", str(folder / "logs"), str(PROGRAM), str(folder), str(NUM_STEPS), str(PAUSE)]
    with (folder / "output").open("w") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def read_losses(folder):
    """All losses of each step, in the order of the starts that computed them."""
    losses = {}
    *lines, _ = (folder / "losses").read_text().split("\n")  # the last one may be half written
    for line in lines:
        step, loss = line.split()
        losses.setdefault(int(step), []).append(float(loss))
    return losses


def read_steps(folder):
    """The steps that were computed so far."""
    return read_losses(folder) if (folder / "losses").exists() else {}


def read_phase(folder, rank):
    """What the worker has noted last; nothing before its first note."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / f"phase_{rank}").read_text())
    return {"restart": -1}


def wait_for_start(folder, launcher, restart):
    """Wait until the first worker of this start runs; False if the launcher has ended."""
    while read_phase(folder, 0)["restart"] < restart:
        if launcher.poll() is not None:
            return False
        time.sleep(0.02)
    return True


def progress(phase):
    """How far a worker is that has noted this phase."""
    return int(phase.split()[1]) if phase.startswith("step") else STARTING.get(phase, NUM_STEPS)


def kill_one(folder, launcher, num_workers, restart):
    """Kill a random worker in a random phase; a description, or None if it had ended."""
    rank = random.randrange(num_workers)
    # Continue for a few steps on average, and begin at any phase of the start.
    first = max((step for step in read_steps(folder)), default=-1)
    target = random.choice([*STARTING.values(), *range(first, min(first + 15, NUM_STEPS))])
    while (found := read_phase(folder, rank))["restart"] == restart and progress(found["phase"]) < target:
        if launcher.poll() is not None:
            return None
        time.sleep(0.01)
    time.sleep(random.uniform(0, LONGEST_PAUSE))
    found = read_phase(folder, rank)
    if found["restart"] != restart:
        return None  # not started, or left out
    try:
        os.kill(found["pid"], signal.SIGKILL)
    except ProcessLookupError:
        return None
    return f"worker {rank} at {found['phase']}"


def largest_difference(losses, reference):
    """Over all steps and starts, relative to the undisturbed losses."""
    assert set(losses) == set(reference), f"steps {sorted(set(reference) ^ set(losses))} are missing"
    pairs = [(loss, reference[step][0]) for step in losses for loss in losses[step]]
    return max(abs(loss - expected) / abs(expected) for loss, expected in pairs)


def end(launcher, folder):
    """Wait for the launcher; its output must show no failure of its own."""
    try:
        status = launcher.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        launcher.kill()
        raise
    assert status == 0, f"launch returned {status}:\n{(folder / 'output').read_text()[-8000:]}"


def disturbed_run(folder, num_workers, options, resize):
    """One run, killed several times; the descriptions of the kills."""
    launcher, kills = launch(folder, num_workers, "--max-restarts", "1000", *options), []
    restart = 0
    while restart < KILLS_PER_RUN and wait_for_start(folder, launcher, restart):
        if resize and restart == KILLS_PER_RUN - 1:
            (folder / "logs/workers").write_text(f"{num_workers}\n")  # back to all of them
        if (kill := kill_one(folder, launcher, num_workers, restart)) is not None:
            kills.append(kill)
        restart = max(restart + (kill is not None), read_phase(folder, 0)["restart"])
        if launcher.poll() is not None:
            break
    end(launcher, folder)
    return kills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("restarts", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fewer", action="store_true", help="with --min-workers 1")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    options = ["--min-workers", "1"] if arguments.fewer else []
    with tempfile.TemporaryDirectory() as parent:
        undisturbed = Path(parent, "undisturbed")
        undisturbed.mkdir()
        start = time.monotonic()
        end(launch(undisturbed, arguments.workers), undisturbed)
        seconds, reference = time.monotonic() - start, read_losses(undisturbed)
        print(f"undisturbed: {len(reference)} steps in {seconds:.1f} s", flush=True)
        total, worst, run = 0, 0.0, 0
        while total < arguments.restarts:
            folder = Path(parent, f"run_{run}")
            folder.mkdir()
            kills = disturbed_run(folder, arguments.workers, options, arguments.fewer)
            losses = read_losses(folder)
            difference = largest_difference(losses, reference)
            repeated = sum(len(found) - 1 for found in losses.values())
            for kill in kills:
                print(f"run {run}  killed {kill}")
            counts = f"{len(kills)} kills, {repeated} steps repeated"
            print(f"run {run}  {counts}, largest difference {difference:.1e}", flush=True)
            total, worst, run = total + len(kills), max(worst, difference), run + 1
    print(f"{total} restarts in {run} runs; largest relative difference of a loss: {worst:.1e}")
    limit = 1e-4 if arguments.fewer else 0.0
    sys.exit(0 if worst <= limit else f"more than {limit:g}")


if __name__ == "__main__":
    main()
