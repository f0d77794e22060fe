"""How long a batch takes that does not divide evenly among three replicas.

    python benchmarks/uneven.py [--quick] [--only tiny] [--json FILE] [--no-check]

The networks are those of `training.py`. "Exact" gives each replica its true rows, the default; "padded"
fills the replicas up to the same number of rows; "even" has one row less for some of them.
"""

from __future__ import annotations

import dataclasses
import functools
import sys

import training
import training_work as work
from harness import Steps, compare, run, take_turns
from rows import Row

import replicax as rx

NUM_REPLICAS = 3
NAMES = ["tiny", "medium"]


def steps_with(workload: work.Workload, partial_batch: str) -> Steps:
    strategy = training.replicas(NUM_REPLICAS)
    options = rx.InputOptions(partial_batch=partial_batch)
    return Steps(training.train_with_replicax(workload, strategy, options))


def bench(name: str, quick: bool) -> list[Row]:
    workload = work.WORKLOADS[name]
    even = dataclasses.replace(workload, batch_size=workload.batch_size // NUM_REPLICAS * NUM_REPLICAS)
    contenders = {
        "exact": steps_with(workload, "exact"),
        "padded": steps_with(workload, "pad"),
        "even": steps_with(even, "exact"),
    }
    num_steps = workload.steps_per_round
    rounds = take_turns(
        contenders,
        num_rounds=5 if quick else 21,
        num_steps=max(1, num_steps // 3) if quick else num_steps,
    )
    what = f"{workload.title} on 3 replicas"
    return [compare(rounds, what, "exact", [other]) for other in ("padded", "even")]


BENCHMARKS = {name: functools.partial(bench, name) for name in NAMES}

if __name__ == "__main__":
    sys.exit(run("How long an uneven batch takes.", BENCHMARKS, num_devices=NUM_REPLICAS))
