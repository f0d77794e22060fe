"""How long the first call takes: tracing, compiling and running once.

    python benchmarks/first.py [--quick] [--only step,eager] [--json FILE] [--no-check]

    step     a step with 300 variables and Adam on two replicas: its first call in total, and the part of
             it that JAX spends on tracing and lowering
    reduce   the first eager `strategy.reduce` of 400 and of 1,000 arrays
    eager    the first eager step of a small network on 16 replicas, against 2

Every figure is from a process of its own, which has done nothing before. The processes of a round run one
after the other.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import overhead
import training
import training_work as work
from by_hand import AXIS, ROWS, WHOLE, reduce_packed, reduce_plainly, two_devices
from harness import Rounds, Step, compare, rounds_of, run
from jax.sharding import NamedSharding
from rows import Row

import replicax as rx

OURS, PLAIN, PACKED = "Replicax", "by hand", "by hand, packed"
WORKLOAD = dataclasses.replace(
    work.WORKLOADS["many"], make_parameters=lambda random: work.regressions(random, 300)
)


# What is called, in a process of its own: `prepare` is not part of the time.


def prepare_step(side: str, _: int) -> Step:
    match side:
        case "Replicax":
            return training.train_with_replicax(WORKLOAD)
        case "by hand":
            return training.train_by_hand(WORKLOAD, reduce_plainly)
        case _:
            return training.train_by_hand(WORKLOAD, reduce_packed)


def prepare_reduce(side: str, count: int) -> Step:
    arrays = [np.ones((2, 1 + i % 20), np.float32) for i in range(count)]
    if side == OURS:
        strategy = training.replicas(2)
        values = [overhead.shard(strategy, array) for array in arrays]
        return lambda: strategy.reduce("SUM", values, axis=None)
    mesh = two_devices()
    placed = [jax.device_put(array, NamedSharding(mesh, ROWS)) for array in arrays]
    mapped = jax.shard_map(
        lambda values: jax.lax.psum(values, AXIS), mesh=mesh, in_specs=ROWS, out_specs=WHOLE
    )
    return lambda: jax.jit(mapped)(placed)


def prepare_eager(_: str, count: int) -> Step:
    state, batch = overhead.make_network(784, 128, 10), overhead.make_batch(64, 784, 10)
    strategy = training.replicas(count)
    step, shards = overhead.train_with_replicax(strategy, overhead.network_loss, state, batch)
    return lambda: step(*shards)


PREPARE: dict[str, Callable[[str, int], Step]] = {
    "step": prepare_step,
    "reduce": prepare_reduce,
    "eager": prepare_eager,
}


def first_call(kind: str, side: str, count: int) -> dict[str, float]:
    """In a process of its own: the seconds of the first call, and of tracing and lowering in it."""
    rx.set_cpu_devices(max(2, count if kind == "eager" else 2))
    jax.block_until_ready(jax.jit(lambda x: x + 1)(np.ones(2)))  # JAX itself has started
    tracing = 0.0

    def listen(event: str, seconds: float, **_: Any) -> None:
        nonlocal tracing
        if event in overhead.TRACING_EVENTS:
            tracing += seconds

    step = PREPARE[kind](side, count)
    jax.monitoring.register_event_duration_secs_listener(listen)
    start = time.perf_counter()
    jax.block_until_ready(step())
    return {"total": time.perf_counter() - start, "tracing": tracing}


# Measuring.


def measured(kind: str, side: str, count: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", kind, side, str(count)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def take_turns(
    kind: str, sides: Sequence[tuple[str, int]], num_rounds: int
) -> dict[tuple[str, int], list[dict[str, float]]]:
    found: dict[tuple[str, int], list[dict[str, float]]] = {side: [] for side in sides}
    for _ in rounds_of(num_rounds):
        for side, figures in found.items():
            figures.append(measured(kind, *side))
    return found


def bench_step(quick: bool) -> list[Row]:
    sides = [(OURS, 0), (PLAIN, 0)] if quick else [(OURS, 0), (PLAIN, 0), (PACKED, 0)]
    found = take_turns("step", sides, 1 if quick else 5)
    rows = []
    for key, what in (("total", "first call"), ("tracing", "tracing and lowering")):
        rounds = Rounds({side: [each[key] for each in figures] for (side, _), figures in found.items()})
        for other, _ in sides[1:]:
            rows.append(compare(rounds, f"{what} of a step with 300 variables and Adam", OURS, [other]))
    return rows


def bench_reduce(quick: bool) -> list[Row]:
    rows = []
    for count in (400,) if quick else (400, 1000):
        found = take_turns("reduce", [(OURS, count), (PLAIN, count)], 1 if quick else 5)
        rounds = Rounds({side: [each["total"] for each in f] for (side, _), f in found.items()})
        rows.append(compare(rounds, f"first eager reduce of {count:,} arrays", OURS, [PLAIN]))
    return rows


def bench_eager(quick: bool) -> list[Row]:
    found = take_turns("eager", [(OURS, 16), (OURS, 2)], 1 if quick else 5)
    rounds = Rounds({f"{n} replicas": [each["total"] for each in f] for (_, n), f in found.items()})
    what = "first eager step: 784-128-10"
    seconds = statistics.median(rounds.seconds["16 replicas"])
    allowed = Row(what, "16 replicas", f"{seconds:.2f} s", "one second", "1 s", seconds)
    return [compare(rounds, what, "16 replicas", ["2 replicas"]), allowed]


BENCHMARKS = {"step": bench_step, "reduce": bench_reduce, "eager": bench_eager}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(first_call(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        sys.exit()
    sys.exit(run("How long the first call takes.", BENCHMARKS, num_devices=2))
