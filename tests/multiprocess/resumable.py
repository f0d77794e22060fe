"""A training program that resumes from its checkpoint; see `test_restarts.py` and `restarts.py`.

Usage: `resumable.py FOLDER STEPS [seconds between steps]`. The first worker adds a line `step loss` to
FOLDER/losses after every step. Every worker notes its process, start and phase in FOLDER/phase_RANK.
"""

import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1]) if __name__ == "__main__" else Path()
RANK = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
RESTART = int(os.environ.get("REPLICAX_RESTART_COUNT", "0"))


def note(phase):
    """Say where this worker is; written completely or not at all."""
    text = json.dumps({"pid": os.getpid(), "restart": RESTART, "phase": phase})
    unfinished = FOLDER / f"unfinished_{RANK}"
    unfinished.write_text(text)
    unfinished.rename(FOLDER / f"phase_{RANK}")


if __name__ == "__main__":
    note("importing")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import replicax as rx  # noqa: E402


def make_data():
    random = np.random.default_rng(5)
    x = random.normal(size=(50, 4)).astype(np.float32)
    return x, np.sin(x.sum(axis=1)).astype(np.float32)


def train(strategy, folder, num_steps, at_step, save_every=3):
    """Continue from the newest checkpoint in `folder` up to `num_steps`.

    `at_step(step, loss)` is called after each step, before its checkpoint.
    """
    key = jax.random.key(0)
    with strategy.scope():
        params = rx.create_variables(
            {"a": 0.5 * jax.random.normal(key, (4, 16)), "b": jnp.zeros(16), "c": jnp.full(16, 0.1)}
        )
        optimizer = rx.Optimizer(optax.adam(0.02))

    def replica_step(x, y):
        def loss_fn():
            p = rx.read_values(params)
            return rx.compute_average_loss((jnp.tanh(x @ p["a"] + p["b"]) @ p["c"] - y) ** 2)

        return optimizer.minimize(loss_fn, list(params.values()))

    @rx.function
    def step_fn(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    examples = rx.from_arrays(make_data()).shuffle(seed=1).repeat().batch(12)
    iterator = iter(strategy.distribute_dataset(examples))
    checkpoint = rx.Checkpoint(params=params, optimizer=optimizer, iterator=iterator)
    manager = rx.CheckpointManager(checkpoint, folder, max_to_keep=2, save_interval=save_every)
    newest = manager.restore_or_initialize()
    start = 0 if newest is None else newest + 1
    for step in range(start, num_steps):
        at_step(step, float(step_fn(next(iterator))))
        manager.save(step)
    manager.wait()
    iterator.close()
    return start


def main():
    num_steps, pause = int(sys.argv[2]), float(sys.argv[3]) if sys.argv[3:] else 0.0

    def at_step(step, loss):
        note(f"step {step}")
        if RANK == 0:
            with (FOLDER / "losses").open("a") as file:
                file.write(f"{step} {loss!r}\n")
        time.sleep(pause)

    note("joining")
    strategy = rx.MultiWorkerMirroredStrategy()
    note("compiling")
    print("from step", train(strategy, FOLDER / "checkpoints", num_steps, at_step))
    note("ending")


if __name__ == "__main__":
    main()
