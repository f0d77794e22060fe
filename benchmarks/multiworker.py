"""How fast networks train on two processes with one CPU device each, beside hand-written JAX and others.

    python benchmarks/multiworker.py [--quick] [--only tiny,many] [--peers PYTHON] [--json FILE]

The networks, and what every side does, are those of `training.py`. Here Replicax is a
`MultiWorkerMirroredStrategy`, and hand-written JAX is its `jit(shard_map)` on the mesh of both processes,
with the gradients reduced one by one or in one buffer. Both run in the same two processes and take turns.
So do the other frameworks, in processes of their own.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

import jax
import numpy as np
import training
import training_work as work
from harness import Rounds, Steps, compare, compare_or_dash, program_beside, pythons_of, run, take_turns
from jax.experimental import multihost_utils
from rows import Row

import replicax as rx
from replicax import testing

NAMES = ["empty", "tiny", "medium", "many", "transformer"]
BY_HAND = ["by hand", "by hand, packed", "by hand, concatenated"]
PEERS = {
    "TensorFlow MultiWorker": ("tensorflow", "multiworker_tensorflow.py"),
    "PyTorch DDP": ("torch", "training_torch.py"),
    "Accelerate": ("accelerate", "training_accelerate.py"),
    "Fabric": ("lightning_fabric", "training_fabric.py"),
}


class Together(Steps):
    """Steps that both processes begin at once: only one of them has waited for a peer's turn."""

    def __call__(self, num_steps: int) -> float:
        multihost_utils.sync_global_devices("turn")
        return super().__call__(num_steps)


def measure(name: str, quick: bool, pythons: dict[str, str]) -> dict[str, list[float]]:
    """Called in both processes: the seconds of each contender, round by round."""
    strategy = rx.MultiWorkerMirroredStrategy()
    workload = work.WORKLOADS[name]
    variants = training.QUICK if quick else BY_HAND
    with contextlib.ExitStack() as stack:
        steps = {v: Together(training.train_by_hand(workload, training.BY_HAND[v])) for v in variants}
        steps[training.OURS] = Together(training.train_with_replicax(workload, strategy))
        beside = {
            title: stack.enter_context(_beside(name, PEERS[title][1], python))
            for title, python in pythons.items()
        }
        _check_losses(steps, beside)
        rounds = take_turns(
            {**steps, **beside},
            num_rounds=5 if quick else 21,
            num_steps=max(1, workload.steps_per_round // (6 if quick else 2)),
        )
    return rounds.seconds


def _check_losses(steps: dict[str, Any], beside: dict[str, Any]) -> None:
    """In both processes; a peer that fails in the first one, which asks it, is left out in both."""
    training.check_losses(steps, {} if jax.process_index() else beside)
    works = np.array([title in beside for title in PEERS])
    for title, did in zip(PEERS, multihost_utils.broadcast_one_to_all(works), strict=True):
        if not did:
            beside.pop(title, None)


def _beside(name: str, program: str, python: str) -> Any:
    """The process that measures a peer, which the first of our processes asks; the other one waits."""
    if jax.process_index() == 0:
        return program_beside(program, python, workload=np.array(name))
    return contextlib.nullcontext(lambda num_steps: 0.0)


def bench(name: str, quick: bool) -> list[Row]:
    pythons = {} if quick else pythons_of(PEERS)
    seconds, _ = testing.run(measure, (name, quick, pythons), num_workers=2, timeout_seconds=1800.0)
    rounds, title = Rounds(seconds), work.WORKLOADS[name].title
    by_hand = [variant for variant in BY_HAND if variant in seconds]
    rows = [compare(rounds, title, training.OURS, by_hand, training.FASTEST)]
    rows += [compare(rounds, title, training.OURS, [variant]) for variant in by_hand]
    return rows + [compare_or_dash(rounds, title, training.OURS, peer) for peer in PEERS if not quick]


BENCHMARKS = {name: functools.partial(bench, name) for name in NAMES}

if __name__ == "__main__":
    sys.exit(run("How fast networks train on two processes.", BENCHMARKS, num_devices=1))
