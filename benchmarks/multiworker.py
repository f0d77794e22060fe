"""How fast networks train on two processes with one CPU device each, beside hand-written JAX and others.

    python benchmarks/multiworker.py [--quick] [--only tiny,many] [--peers PYTHON] [--markdown FILE]

The networks, and what every side does, are those of `training.py`. Here Replicax is a
`MultiWorkerMirroredStrategy`, and hand-written JAX is its `jit(shard_map)` on the mesh of both processes,
with the gradients reduced one by one or in one buffer. Both run in the same two processes and take turns.
So do TensorFlow (`MultiWorkerMirroredStrategy`) and PyTorch (`DistributedDataParallel`), in processes of
their own, if the Python that `--peers` names has them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import training
import training_work as work
from harness import (
    Rounds,
    Row,
    Step,
    compare,
    is_installed,
    peers_python,
    program_beside,
    run,
    step_seconds,
    take_turns,
)
from jax.experimental import multihost_utils

import replicax as rx
from replicax import testing

NAMES = ["tiny", "medium", "many", "transformer"]
PEERS = {
    "TensorFlow": ("tensorflow", "multiworker_tensorflow.py"),
    "PyTorch": ("torch", "training_torch.py"),
}


def measure(name: str, quick: bool, peers: list[str], python: str) -> dict[str, list[float]]:
    """Called in both processes: the seconds of each contender, round by round."""
    strategy = rx.MultiWorkerMirroredStrategy()
    workload = work.WORKLOADS[name]
    variants = [v for v in training.BY_HAND if not (quick and v == training.SLOW_TO_COMPILE)]
    with contextlib.ExitStack() as stack:
        steps = {v: training.train_by_hand(workload, training.BY_HAND[v]) for v in variants}
        steps["Replicax"] = training.train_with_replicax(workload, strategy)
        beside = {peer: stack.enter_context(_beside(name, PEERS[peer][1], python)) for peer in peers}
        training.check_losses(steps, {} if jax.process_index() else beside)
        contenders: dict[str, Callable[[int], float]] = {
            title: functools.partial(_together, step) for title, step in steps.items()
        }
        rounds = take_turns(
            {**contenders, **beside},
            lambda contender, num_steps: contender(num_steps),
            num_rounds=3 if quick else 21,
            num_steps=max(1, workload.steps_per_round // (10 if quick else 2)),
        )
    return rounds.seconds


def _together(step: Step, num_steps: int) -> float:
    """`step_seconds`, begun by both processes at once: only one of them has waited for a peer's turn."""
    multihost_utils.sync_global_devices("turn")
    return step_seconds(step, num_steps)


def _beside(name: str, program: str, python: str) -> Any:
    """The process that measures a peer, which the first of our processes asks; the other one waits."""
    if jax.process_index() == 0:
        return program_beside(program, python, workload=np.array(name))
    return contextlib.nullcontext(lambda num_steps: 0.0)


def bench(name: str, quick: bool) -> list[Row]:
    python = peers_python()
    peers = [peer for peer, (module, _) in PEERS.items() if is_installed(module, python)]
    seconds, _ = testing.run(measure, (name, quick, peers, python), num_workers=2, timeout_seconds=1200.0)
    rounds, title = Rounds(seconds), work.WORKLOADS[name].title
    by_hand = [contender for contender in seconds if contender in training.BY_HAND]
    rows = [compare(rounds, title, "Replicax", by_hand, 1 / 0.97)]
    for peer in peers:
        ahead = rounds.median(rounds.fastest(by_hand)) < rounds.median(peer)
        rows.append(compare(rounds, title, "Replicax", [peer], 1.0 if ahead else None))
    return rows


BENCHMARKS = {name: functools.partial(bench, name) for name in NAMES}

if __name__ == "__main__":
    sys.exit(run("How fast networks train on two processes.", BENCHMARKS, num_devices=1))
