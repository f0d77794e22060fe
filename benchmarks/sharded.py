"""How fast models train whose state is divided among two devices, beside hand-written FSDP and others.

    python benchmarks/sharded.py [--quick] [--only medium] [--json FILE] [--no-check] [--peers PYTHON]

The models, and what every side does, are those of `training.py`, with state of 64 KiB or more divided. The
hand-written sides are in `sharded_by_hand.py`. The first row of a model matters
most: the same collectives as hand-written FSDP, which the rows of bytes show. XLA on CPU lets the second
version by hand gather only once and keep the whole parameters for the backward pass; so does
`gather_again=False`, which is compared with it.

Keras (`ModelParallel` on JAX) and PyTorch (FSDP2 on two processes, gloo) run beside. What is not
installed has a dash.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import math
import re
import sys
from typing import Any

import jax
import numpy as np
import sharded_by_hand as by_hand
import training
import training_work as work
from harness import (
    ProgramBeside,
    Rounds,
    Step,
    Steps,
    compare_or_dash,
    run,
    start_peers,
    take_turns,
    working_peers,
)
from rows import Row

import replicax as rx

NAMES = ["medium", "transformer"]
PEERS = {
    "Keras ModelParallel": ("keras", "sharded_keras.py"),
    "PyTorch FSDP2": ("torch", "sharded_torch.py"),
}
WHOLE, ONCE, SLOTS = "Replicax, all", "Replicax, all, gathered once", "Replicax, optimizer"
REPLICAX: dict[str, Any] = {
    WHOLE: {"shard": "all"},
    ONCE: {"shard": "all", "gather_again": False},
    SLOTS: {"shard": "optimizer"},
}
Collectives = dict[str, tuple[int, int]]


def collectives(program: jax.stages.Compiled) -> Collectives:
    """The number of collectives of each kind in a compiled program, and the bytes of their results."""
    text = re.sub(r"/\*.*?\*/", "", program.as_text() or "")
    kinds = "all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all"
    counts, sizes = collections.Counter[str](), collections.Counter[str]()
    for shapes, kind in re.findall(rf"= ([^=]*?) ({kinds})(?:-start)?\(", text):
        counts[kind] += 1
        for dims in re.findall(r"f32\[([\d,]*)\]", shapes):
            sizes[kind] += 4 * math.prod(map(int, filter(None, dims.split(","))))
    return {kind: (counts[kind], sizes[kind]) for kind in sorted(counts)}


def shown(found: Collectives) -> str:
    return ", ".join(f"{count} {kind} {size / 1e6:.2f} MB" for kind, (count, size) in found.items())


class Contenders:
    """The steps of one model, and their compiled programs."""

    def __init__(self, name: str) -> None:
        self.workload = work.WORKLOADS[name]
        self.steps: dict[str, Step] = {}
        self.programs: dict[str, jax.stages.Compiled] = {}
        for title, make in by_hand.BY_HAND.items():
            self._add_by_hand(title, make, slots_only=False)
        self._add_by_hand("by hand, ZeRO-1", by_hand.with_divided_slots, slots_only=True)
        for title, options in REPLICAX.items():
            step = training.train_with_replicax(self.workload, rx.ShardedStrategy(**options))
            self._add(title, step, step.func.lower(*step.args))

    def _add_by_hand(self, title: str, make: Any, *, slots_only: bool) -> None:
        load = self.workload
        count = work.NUM_REPLICAS
        state = by_hand.State(
            load.parameters(), load.batch(), training.adam(), count, slots_only=slots_only
        )
        self._add(title, *make(training.LOSSES[load.model], state))

    def _add(self, title: str, step: Step, lowered: jax.stages.Lowered) -> None:
        self.steps[title], self.programs[title] = step, lowered.compile()

    def compare_bytes(self, ours: str, theirs: str) -> Row:
        """The bytes that the collectives of two programs leave on a device."""
        found = [collectives(self.programs[title]) for title in (theirs, ours)]
        sizes = [sum(size for _, size in kinds.values()) for kinds in found]
        title = f"{self.workload.title}: bytes"
        return Row(title, ours, shown(found[1]), theirs, shown(found[0]), sizes[1] / sizes[0])

    def compare_memory(self, ours: str, theirs: str) -> Row:
        """The memory that two programs need on a device for temporary arrays."""
        sizes = [self.programs[title].memory_analysis().temp_size_in_bytes for title in (theirs, ours)]
        title = f"{self.workload.title}: temporary memory"
        texts = [f"{size / 1e6:.1f} MB" for size in sizes]
        return Row(title, ours, texts[1], theirs, texts[0], sizes[1] / sizes[0])


def check_losses(steps: dict[str, Step], peers: dict[str, ProgramBeside]) -> None:
    losses = {title: [float(step()) for _ in range(3)] for title, step in steps.items()}
    losses |= working_peers(peers, 3)
    first = losses["where used"]
    for title, others in losses.items():
        tolerance = (0.05 if title in peers else 0.002) * (first[0] - first[-1])
        np.testing.assert_allclose(others, first, rtol=0, atol=tolerance, err_msg=title)


def bench(name: str, quick: bool) -> list[Row]:
    contenders = Contenders(name)
    load = contenders.workload
    with contextlib.ExitStack() as stack:
        peers = {} if quick else start_peers(stack, PEERS, workload=np.array(name))
        check_losses(contenders.steps, peers)
        timed = {title: Steps(step) for title, step in contenders.steps.items()}
        rounds = take_turns(
            {**timed, **peers},
            num_rounds=3 if quick else 21,
            num_steps=max(1, load.steps_per_round // (5 if quick else 1)),
        )
    return rows_of(contenders, rounds, [] if quick else list(PEERS))


def rows_of(contenders: Contenders, rounds: Rounds, peers: list[str]) -> list[Row]:
    def timed(ours: str, theirs: str) -> Row:
        return compare_or_dash(rounds, contenders.workload.title, ours, theirs)

    rows = [
        timed(WHOLE, "where used"),
        timed(WHOLE, "jit"),
        timed(WHOLE, "shard_map"),
        timed(ONCE, "shard_map"),
        timed(SLOTS, "by hand, ZeRO-1"),
        contenders.compare_bytes(WHOLE, "where used"),
        contenders.compare_bytes(ONCE, "shard_map"),
        contenders.compare_bytes(SLOTS, "by hand, ZeRO-1"),
        contenders.compare_memory(WHOLE, "where used"),
        contenders.compare_memory(ONCE, "shard_map"),
    ]
    return rows + [timed(ours, peer) for ours, peer in itertools.product((WHOLE, ONCE), peers)]


BENCHMARKS = {name: functools.partial(bench, name) for name in NAMES}

if __name__ == "__main__":
    sys.exit(run("How fast models train whose state is divided.", BENCHMARKS, num_devices=2))
