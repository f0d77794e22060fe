"""How long a step of GPT-2 with 124 million parameters takes on one GPU, and its first call.

    python benchmarks/gpt.py [--quick] [--only step] [--json FILE] [--no-check] [--peers PYTHON]

    step    16 rows of 1,024 words in bfloat16, AdamW, clipped gradients
    first   building the step and calling it once

The model is that of `examples/gpt2.py`. Hand-written JAX is one `jax.jit` of the same loss, with donated
state. PyTorch (`torch.compile`, flash attention, fused AdamW) runs in a process beside, if the Python that
`--peers` names has it. Without a GPU the model is a tiny one, to try the program.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

# PyTorch needs a part of the GPU's memory at the same time.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from harness import Step, Steps, compare, compare_or_dash, run, shown, start_peers, take_turns
from rows import Row

import replicax as rx

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import gpt2

ROWS, TOTAL_STEPS = 16, 10_000
PEERS = {"PyTorch": ("torch", "gpt_torch.py")}


def shape() -> gpt2.Shape:
    return gpt2.SIZES["124M" if jax.default_backend() == "gpu" else "tiny"]


def batch() -> np.ndarray:
    return np.random.default_rng(0).integers(
        shape().words, size=(ROWS, shape().context + 1), dtype=np.int32
    )


def train_by_hand() -> Step:
    optimizer, model = gpt2.make_optimizer(TOTAL_STEPS), shape()
    params = jax.tree.map(jnp.asarray, gpt2.initial_values(model))
    state = [params, optimizer.init(params)]

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state: Any, rows: Any) -> Any:
        params, slots = state

        def loss_fn(params: Any) -> Any:
            small = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
            return jnp.mean(gpt2.average_losses(small, rows, model))

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, slots = optimizer.update(gradients, slots, params)
        return loss, [optax.apply_updates(params, updates), slots]

    rows = jnp.asarray(batch())

    def step() -> Any:
        nonlocal state
        loss, state = train_step(state, rows)
        return loss

    return step


def train_with_replicax() -> Step:
    strategy = rx.MirroredStrategy(["GPU:0"] if jax.default_backend() == "gpu" else ["CPU:0"])
    step = gpt2.make_step(strategy, shape(), TOTAL_STEPS)
    return functools.partial(step, strategy.distribute_batch(batch()))


def bench_step(quick: bool) -> list[Row]:
    steps = {"by hand": train_by_hand(), "Replicax": train_with_replicax()}
    losses = {title: [float(step()) for _ in range(3)] for title, step in steps.items()}
    np.testing.assert_allclose(losses["Replicax"], losses["by hand"], rtol=2e-3)
    on_gpu = jax.default_backend() == "gpu"
    with contextlib.ExitStack() as stack:
        given = {"rows": batch(), "sizes": np.array([*vars(shape()).values()])}
        peers = start_peers(stack, PEERS, **given) if on_gpu and not quick else {}
        timed = {title: Steps(step) for title, step in steps.items()}
        rounds = take_turns(
            {**timed, **peers},
            num_rounds=3 if quick else 15,
            num_steps=5 if quick else 20,
        )
    title = f"GPT-2 124M, {ROWS} rows" if on_gpu else "a tiny GPT"
    rows = [compare(rounds, title, "Replicax", ["by hand"])]
    return rows + [
        compare_or_dash(rounds, title, "Replicax", peer) for peer in PEERS if on_gpu and not quick
    ]


def bench_first(quick: bool) -> list[Row]:
    seconds: dict[str, list[float]] = {"by hand": [], "Replicax": []}
    for _ in range(1 if quick else 3):
        for title, make in (("by hand", train_by_hand), ("Replicax", train_with_replicax)):
            jax.clear_caches()
            start = time.perf_counter()
            jax.block_until_ready(make()())
            seconds[title].append(time.perf_counter() - start)
    hand, ours = (sorted(times)[len(times) // 2] for times in seconds.values())
    title = "GPT-2 124M: first call" if jax.default_backend() == "gpu" else "a tiny GPT: first call"
    return [Row(title, "Replicax", shown(ours), "by hand", shown(hand), ours / hand)]


BENCHMARKS = {"step": bench_step, "first": bench_first}

if __name__ == "__main__":
    sys.exit(run("How long a step of GPT-2 takes.", BENCHMARKS, num_devices=1))
