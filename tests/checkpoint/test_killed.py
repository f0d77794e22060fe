"""A program that is killed again and again ends as if it never was.

    python -m tests.checkpoint.test_killed NUM_KILLS [SEED [STRATEGY [NUM_FLOATS]]]

for as many kills as you like, and figures. 24000000 floats are written as several items.
"""

import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from tests import environment

PROGRAM = pathlib.Path(__file__).with_name("killed_trainer.py")


def start(folder, strategy, num_steps, interval, num_floats):
    with pathlib.Path(folder, "output").open("a") as output:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, (folder, strategy, num_steps, interval, num_floats))],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment.of_programs(),
        )


def lines(folder):
    log = pathlib.Path(folder, "log")
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def output(folder):
    return pathlib.Path(folder, "output").read_text()[-3000:]


def to_the_end(folder, *settings):
    """Let the program run to its end."""
    process = start(folder, *settings)
    try:
        assert process.wait(timeout=240) == 0, output(folder)
    finally:
        process.kill()
        process.wait()
    assert lines(folder)[-1] == ["end"]


def kill(folder, when, *settings):
    """Start the program, and kill it `when` says so of what it noted in this life; those notes."""
    before = len(lines(folder))
    process = start(folder, *settings)
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if when(lines(folder)[before:]):
                break
            time.sleep(0.001)
        ended = process.poll()
        assert ended in (None, 0), output(folder)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    return lines(folder)[before:]


def in_a_save(notes):
    """Whether a save was begun that was not complete."""
    begun = {note[1] for note in notes if note[0] == "save"}
    return bool(begun - {note[1] for note in notes if note[0] == "saved"})


def moments(chance, interval):
    """A random moment: mostly in the middle of a save, else after some steps, or while it begins."""
    kind = chance.random()
    if kind < 0.1:
        begin, delay = time.monotonic(), chance.uniform(1.0, 4.0)
        return lambda notes: time.monotonic() - begin >= delay
    if kind < 0.65:
        number, delay = chance.randint(1, 3), chance.random() ** 2 * 0.15
        reached = []

        def when(notes):
            if len([note for note in notes if note[0] == "save"]) >= number and not reached:
                reached.append(time.monotonic())
            return bool(reached) and time.monotonic() - reached[0] >= delay

        return when
    count, delay = chance.randint(0, 3 * interval), chance.random() * 0.03

    def when(notes):
        if notes and len([note for note in notes if note[0].isdecimal()]) >= count:
            time.sleep(delay)
            return True
        return False

    return when


def losses(notes):
    """The loss of every step; the same, whenever a step was repeated."""
    found = {}
    for note in notes:
        if note[0].isdecimal():
            assert found.setdefault(int(note[0]), note[1]) == note[1], f"step {note[0]} differs"
    return found


def run(folder, num_kills, seed=0, strategy="mirrored2", num_floats=2_000_000, interval=4):
    """Kill the program `num_kills` times, then let it end; figures, and the losses with and without."""
    chance = random.Random(seed)
    folder = pathlib.Path(folder)
    (folder / "undisturbed").mkdir()
    (folder / "killed").mkdir()
    num_in_save, num_resumed, longest = 0, 0, 0
    for _ in range(num_kills):
        there = complete(folder / "killed")
        notes = kill(folder / "killed", moments(chance, interval), strategy, 100_000, interval, num_floats)
        num_in_save += in_a_save(notes)
        if notes:  # else it was killed before it could say anything
            assert int(notes[0][1]) == max(there, default=0), "not the newest checkpoint"
            num_resumed += 1
        longest = max([longest, *(int(note[0]) for note in notes if note[0].isdecimal())])
    num_steps = longest + interval + 3
    to_the_end(folder / "killed", strategy, num_steps, interval, num_floats)
    to_the_end(folder / "undisturbed", strategy, num_steps, num_steps + 1, num_floats)
    left = [path.name for path in (folder / "killed" / "checkpoints").iterdir()]
    assert all(name.isdecimal() for name in left), f"something was left behind: {left}"
    return {
        "kills": num_kills,
        "in a save": num_in_save,
        "resumed": num_resumed,
        "steps": num_steps,
        "losses": losses(lines(folder / "killed")),
        "undisturbed": losses(lines(folder / "undisturbed")),
    }


def complete(folder):
    checkpoints = folder / "checkpoints"
    names = [path.name for path in checkpoints.iterdir()] if checkpoints.is_dir() else []
    return [int(name) for name in names if name.isdecimal()]


def test_a_program_that_is_killed_ends_with_the_losses_of_one_that_is_not(tmp_path):
    figures = run(tmp_path, num_kills=3, seed=1)
    assert figures["in a save"] >= 1
    assert figures["losses"] == figures["undisturbed"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        options = [int(x) if x.isdecimal() else x for x in sys.argv[1:]]
        figures = run(folder, *options)
        figures["identical"] = figures.pop("losses") == figures.pop("undisturbed")
        print(figures, f"in {time.monotonic() - began:.0f} s")
