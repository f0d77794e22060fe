"""How much memory a save and a restore of sharded state take, beyond the state itself.

    python -m tests.checkpoint.memory [MEGABYTES] [NUM_DEVICES]

Trains nothing: the state is a list of sharded variables of 32 MB each. All devices are those of one
machine, so its memory holds the state once; printed is the peak beyond that, as a part of the state.
"""

import pathlib
import sys
import tempfile
import threading
import time

import numpy as np

import replicax as rx

COLUMNS, ROWS = 4096, 2047  # uneven: the last shard is padded


def resident():
    """The bytes of this process that are in memory."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


class Peak:
    """The most memory of a `with` block beyond what there was before it."""

    def __enter__(self):
        self._before = self._most = resident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._ended.wait(0.002):
            self._most = max(self._most, resident())

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        self.bytes = self._most - self._before


def model(strategy, count, value):
    def initial(i):
        return lambda: np.full((ROWS, COLUMNS), value + i, np.float32)

    with strategy.scope():
        return [rx.Variable(initial(i)) for i in range(count)]


def measure(megabytes, num_devices, folder):
    """The peaks of saving and restoring, each divided by the size of the state."""
    strategy = rx.ShardedStrategy([f"CPU:{i}" for i in range(num_devices)], shard="all")
    count = max(1, megabytes // 32)
    size = count * ROWS * COLUMNS * 4
    variables = model(strategy, count, 1.0)
    assert all(isinstance(v, rx.ShardedVariable) for v in variables)
    checkpoint = rx.Checkpoint(model=variables)
    rx.Checkpoint(first=rx.Variable(0.0)).save(pathlib.Path(folder, "first"))  # imports Orbax
    found, began = {}, time.monotonic()
    with Peak() as peak:
        path = checkpoint.save(folder)
    found["save"] = peak.bytes / size
    with Peak() as peak, rx.CheckpointManager(checkpoint, pathlib.Path(folder, "managed")) as manager:
        manager.save(0)
    found["save in the background"] = peak.bytes / size
    for v in variables:
        v.assign(np.zeros(v.shape, np.float32), read_value=False)
    with Peak() as peak:
        checkpoint.restore(path)
    found["restore"] = peak.bytes / size
    assert all((v.numpy() == 1.0 + i).all() for i, v in enumerate(variables))
    return found, time.monotonic() - began


if __name__ == "__main__":
    megabytes, num_devices = (int(x) for x in (*sys.argv[1:], *("1024", "8")[len(sys.argv) - 1 :]))
    rx.set_cpu_devices(num_devices)
    with tempfile.TemporaryDirectory() as folder:
        peaks, seconds = measure(megabytes, num_devices, folder)
    for what, part in peaks.items():
        print(f"{what:24} {part:5.2f} of the state ({megabytes} MB)")
    print(f"{seconds:.0f} s")
