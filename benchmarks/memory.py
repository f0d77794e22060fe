"""How much memory the process of a training loop takes on CPU devices, and what its allocator changes.

    python benchmarks/memory.py [--quick] [--only peak] [--json FILE] [--no-check]

    peak        the largest size of a process that trains 784-2048-2048-10 (and one more as tiny as it
                gets), against hand-written JAX
    allocator   the same with other settings of glibc's allocator, and the time of a step; see "Memory of
                CPU devices" in docs/performance.md

Every figure is from a process of its own. The processes of a round run one after the other.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time

import jax
import training
import training_work as work
from by_hand import reduce_plainly
from harness import rounds_of, run
from rows import Row

import replicax as rx

SIDES = {
    "by hand": lambda workload: training.train_by_hand(workload, reduce_plainly),
    "Replicax": training.train_with_replicax,
}
GLIBC = "glibc's own setting"
SETTINGS = {
    GLIBC: {},
    "one arena": {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    },
    "all buffers kept": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)},
}
Found = dict[str, float]


def train(name: str, side: str, num_steps: int) -> Found:
    """In a process of its own: seconds of a step, and the peak of its memory in megabytes."""
    rx.set_cpu_devices(work.NUM_REPLICAS)
    step = SIDES[side](work.WORKLOADS[name])
    times = []
    for _ in range(num_steps + 3):
        start = time.perf_counter()
        jax.block_until_ready(step())
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": statistics.median(times[3:]), "megabytes": peak}


def measured(name: str, side: str, num_steps: int, setting: str = GLIBC) -> Found:
    command = [sys.executable, __file__, "--train", name, side, str(num_steps)]
    environment = {**os.environ, **SETTINGS[setting]}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return json.loads(output.splitlines()[-1])


def compared(what: str, found: dict[str, list[Found]], ours: str, baseline: str, key: str) -> Row:
    """The medians of two sides, and that of their ratios in each round."""
    ratios = [mine[key] / other[key] for mine, other in zip(found[ours], found[baseline], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    values = [statistics.median(each[key] for each in found[side]) for side in (ours, baseline)]
    texts = [f"{x:.0f} MB" if key == "megabytes" else f"{1e3 * x:.1f} ms" for x in values]
    return Row(what, ours, texts[0], baseline, texts[1], statistics.median(ratios), (low, high))


def bench_peak(quick: bool) -> list[Row]:
    rows = []
    for name in ("medium", "empty"):
        rounds = rounds_of(1 if quick else 5)
        found: dict[str, list[Found]] = {side: [] for side in SIDES}
        for _ in rounds:
            for side, figures in found.items():
                figures.append(measured(name, side, num_steps=10))
        what = f"peak memory of a process: {work.WORKLOADS[name].title}"
        rows.append(compared(what, found, "Replicax", "by hand", "megabytes"))
    return rows


def bench_allocator(quick: bool) -> list[Row]:
    rows = []
    for name in ("medium", "tiny"):
        found: dict[str, list[Found]] = {setting: [] for setting in SETTINGS}
        for _ in rounds_of(1 if quick else 5):
            for setting, figures in found.items():
                figures.append(measured(name, "Replicax", 30, setting))
        title = work.WORKLOADS[name].title
        for setting in list(SETTINGS)[1:]:
            rows.append(compared(f"a step: {title}", found, setting, GLIBC, "seconds"))
            rows.append(compared(f"peak memory: {title}", found, setting, GLIBC, "megabytes"))
    return rows


BENCHMARKS = {"peak": bench_peak, "allocator": bench_allocator}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        print(json.dumps(train(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        sys.exit()
    sys.exit(run("How much memory a training loop takes.", BENCHMARKS, num_devices=1))
