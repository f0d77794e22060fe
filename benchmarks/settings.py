"""What settings of glibc's memory allocator change on CPU devices: time of a step, and peak memory.

    python benchmarks/settings.py [--rounds N] [--steps N]

Each round starts a process with each of the settings, one after the other. They train the same network on
two CPU devices. See "Memory of CPU devices" in docs/performance.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time

SETTINGS = {
    "glibc's own": {},
    "one arena, buffers up to 32 MB kept": {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    },
    "all buffers kept": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)},
}
NETWORKS = {"784-2048-2048-10": ((784, 2048, 2048, 10), 512), "784-128-10": ((784, 128, 10), 64)}


def train(network: str, num_steps: int) -> dict[str, float]:
    """In a process of its own: milliseconds of a step, and the peak of its memory in megabytes."""
    import jax
    import numpy as np
    import optax

    import replicax as rx

    rx.set_cpu_devices(2)
    sizes, rows = NETWORKS[network]
    random = np.random.default_rng(0)
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        params = rx.create_variables(
            [
                {
                    "w": (random.normal(size=size) / size[0] ** 0.5).astype(np.float32),
                    "b": np.zeros(size[1]),
                }
                for size in itertools.pairwise(sizes)
            ]
        )
        optimizer = rx.Optimizer(optax.adam(1e-3))

    def loss(x, y):
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        logits = x @ params[-1]["w"] + params[-1]["b"]
        return rx.compute_average_loss(optax.softmax_cross_entropy_with_integer_labels(logits, y))

    def replica_step(x, y):
        value, gradients = rx.value_and_grad(loss, params)(x, y)
        optimizer.apply_gradients(gradients, params)
        return value

    @rx.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    x = random.normal(size=(4 * rows, sizes[0])).astype(np.float32)
    y = random.integers(0, sizes[-1], size=4 * rows).astype(np.int32)
    dataset = rx.from_arrays((x, y)).batch(rows).repeat()
    times = []
    for i, (x, y) in enumerate(strategy.distribute_dataset(dataset)):
        start = time.perf_counter()
        jax.block_until_ready(step(x, y))
        times.append(time.perf_counter() - start)
        if i == num_steps + 3:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": 1000 * statistics.median(times[4:]), "mb": peak}


def measure(network: str, setting: str, num_steps: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--train", network, "--steps", str(num_steps)]
    environment = {**os.environ, **SETTINGS[setting]}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return json.loads(output)


def row(network: str, num_rounds: int, num_steps: int) -> list[str]:
    """For each setting: time, memory, and both relative to the first one in the same round."""
    rounds = [{x: measure(network, x, num_steps) for x in SETTINGS} for _ in range(num_rounds)]
    first = next(iter(SETTINGS))
    lines = []
    for setting in SETTINGS:
        cells = [network, setting]
        for name, unit in (("ms", "ms"), ("mb", "MB")):
            ratios = [found[setting][name] / found[first][name] for found in rounds]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            cells += [f"{statistics.median(found[setting][name] for found in rounds):.1f} {unit}", spread]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train, options.steps)))
        return
    print("| network | setting | a step | ratio | peak memory | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for network in NETWORKS:
        print("\n".join(row(network, options.rounds, options.steps)), flush=True)


if __name__ == "__main__":
    main()
