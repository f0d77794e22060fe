"""How much a checkpoint that is being written slows the training loop down.

python benchmarks/checkpoint.py [--quick] [--only writing,resumed] [--json FILE] [--no-check]

writing    the step of a network on two replicas while `CheckpointManager` writes 500 MB in the background,
           against the same loop without; also the copy from the devices that `save` makes before it
           returns, which is not part of the step, and how long the background takes
resumed    the same in a program that has restored a checkpoint before. (The threads that read it live on,
           so run it alone: --only resumed.)
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from harness import compare, run, shown, take_turns
from rows import Row

import replicax as rx

NUM_BYTES = 500_000_000
SIZES = (784, 1024, 1024, 10)
BATCH = 512


class Training:
    """An MLP trained by Adam, beside as many frozen weights as make the checkpoint large."""

    def __init__(self, strategy: Any) -> None:
        random = np.random.default_rng(0)
        with strategy.scope():
            self.weights = [
                rx.Variable(
                    random.normal(0, rows**-0.5, (rows, columns)).astype(np.float32),
                    name=f"w{rows}x{columns}",
                )
                for rows, columns in itertools.pairwise(SIZES)
            ]
            self.optimizer = rx.Optimizer(optax.adam(1e-3))
            self.optimizer.build(self.weights)
            so_far = sum(4 * v.size for v in (*self.weights, *self.optimizer.variables))
            self.frozen = [
                rx.Variable(
                    random.random(((NUM_BYTES - so_far) // 32, 1), np.float32),
                    name=f"frozen{i}",
                    trainable=False,
                )
                for i in range(8)
            ]
        images = random.random((BATCH, SIZES[0]), np.float32)
        labels = random.integers(0, 10, BATCH).astype(np.int32)
        dataset = rx.from_arrays((images, labels)).batch(BATCH)
        self._batch = next(iter(strategy.distribute_dataset(dataset)))
        self._strategy = strategy
        self._step = rx.function(self._compiled_step)

    def _compiled_step(self, batch: Any) -> Any:
        return self._strategy.reduce("SUM", self._strategy.run(self._replica_step, args=batch), axis=None)

    def _replica_step(self, images: Any, labels: Any) -> Any:
        def loss_fn() -> Any:
            w1, w2, w3 = (w.value for w in self.weights)
            scores = jax.nn.log_softmax(jax.nn.relu(jax.nn.relu(images @ w1) @ w2) @ w3)
            return rx.compute_average_loss(-jnp.take_along_axis(scores, labels[:, None], axis=-1)[:, 0])

        loss, gradients = rx.value_and_grad(loss_fn, self.weights)()
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))
        return loss

    def step(self) -> None:
        """A step whose loss is looked at."""
        self._step(self._batch).block_until_ready()


class Writing:
    """Steps while a checkpoint is written, and what was noted beside their time."""

    def __init__(self, training: Training, directory: str) -> None:
        checkpoint = rx.Checkpoint(
            weights=training.weights, optimizer=training.optimizer, frozen=training.frozen
        )
        self._training = training
        self._manager = rx.CheckpointManager(checkpoint, directory, max_to_keep=1)
        self._next = itertools.count()
        self.copying: list[float] = []
        self.writing: list[float] = []
        self.num_steps: list[int] = []

    def __call__(self, num_steps: int) -> float:
        """Seconds per step from the return of `save` to the step in which the checkpoint is complete."""
        number = next(self._next)
        start = time.perf_counter()
        self._manager.save(number)
        begun = time.perf_counter()
        done = 0
        while number not in self._manager.checkpoints:
            self._training.step()
            done += 1
        ended = time.perf_counter()
        self._manager.wait()
        self.copying.append(begun - start)
        self.writing.append(ended - begun)
        self.num_steps.append(done)
        return (ended - begun) / max(done, 1)


def alone(training: Training, num_steps: int) -> float:
    start = time.perf_counter()
    for _ in range(num_steps):
        training.step()
    return (time.perf_counter() - start) / num_steps


def bench_resumed(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = rx.Checkpoint(w=rx.Variable(np.zeros(100_000, np.float32)))
        checkpoint.restore(checkpoint.save(directory))
    return measure(quick, "resumed")


def bench_writing(quick: bool) -> list[Row]:
    return measure(quick, "begun")


def measure(quick: bool, name: str) -> list[Row]:
    training = Training(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    with tempfile.TemporaryDirectory() as directory:
        writing = Writing(training, directory)
        contenders: dict[str, Callable[[int], float]] = {
            # As many as the last write took, so that what else the machine does touches both alike.
            "alone": lambda num_steps: alone(training, max([num_steps, *writing.num_steps[-1:]])),
            "while writing": writing,
        }
        rounds = take_turns(
            contenders,
            num_rounds=3 if quick else 9,
            num_steps=30,
        )
    copying, background = (statistics.median(seconds[1:]) for seconds in (writing.copying, writing.writing))
    print(f"load average {os.getloadavg()}, steps during a write {writing.num_steps[1:]}", file=sys.stderr)
    step = rounds.median("alone")
    return [
        compare(rounds, f"{name}: step while 500 MB are written", "while writing", ["alone"]),
        Row(
            f"{name}: copy inside save(), in steps",
            "copying",
            shown(copying),
            "alone",
            shown(step),
            copying / step,
        ),
        Row(
            f"{name}: writing, in steps",
            "writing",
            shown(background),
            "alone",
            shown(step),
            background / step,
        ),
    ]


BENCHMARKS = {"writing": bench_writing, "resumed": bench_resumed}

if __name__ == "__main__":
    sys.exit(run("How much writing a checkpoint slows training down.", BENCHMARKS, num_devices=2))
