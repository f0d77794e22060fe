"""How fast batches come to the devices, and how long steps wait for them.

python benchmarks/input.py [--quick] [--only arrays,waiting] [--json FILE] [--no-check]

arrays     batches of NumPy arrays on two replicas, each waited for until it is on the devices, against
           `jax.device_put(batch, NamedSharding)` of batches that were made beforehand, and against
           `tf.data` with `experimental_distribute_dataset`, if TensorFlow is installed
waiting    the part of the time that a training loop waits for input, when a step takes longer than its
           batch and the loop looks at every loss
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import compare, compare_or_dash, program_beside, python_with, run, shown, take_turns
from jax.sharding import NamedSharding
from rows import Row

import replicax as rx

NUM_EXAMPLES, NUM_FEATURES = 60_000, 784

Batches = Iterator[Any]


def make_data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.random((NUM_EXAMPLES, NUM_FEATURES), np.float32)
    return images, random.integers(0, 10, NUM_EXAMPLES).astype(np.int32)


def two_replicas() -> rx.MirroredStrategy:
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


# The contenders: endless batches, on the devices.


def put_by_hand(batches: Iterator[Any]) -> Batches:
    mesh = two_replicas().mesh.mesh
    rows = NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names[0]))
    for batch in batches:
        yield jax.device_put(batch, (rows, rows))


def ready_made(data: tuple[np.ndarray, np.ndarray], size: int) -> Iterator[Any]:
    """Batches that were copied beforehand, over and over again."""
    starts = range(0, 14 * size, size)
    return itertools.cycle([tuple(array[i : i + size].copy() for array in data) for i in starts])


def gathered_by_hand(data: tuple[np.ndarray, np.ndarray], size: int) -> Iterator[Any]:
    random = np.random.default_rng(1)
    while True:
        order = random.permutation(NUM_EXAMPLES)
        for i in range(0, NUM_EXAMPLES - size + 1, size):
            rows = order[i : i + size]
            yield tuple(array[rows] for array in data)


def with_replicax(data: tuple[np.ndarray, np.ndarray], size: int, *, shuffled: bool) -> Batches:
    dataset = rx.from_arrays(data)
    if shuffled:
        dataset = dataset.shuffle(seed=1)
    return iter(two_replicas().distribute_dataset(dataset.repeat().batch(size)))


def seconds_per_batch(batches: Batches, num_batches: int) -> float:
    """Seconds until a batch is on the devices."""
    start = time.perf_counter()
    for batch in itertools.islice(batches, num_batches):
        jax.block_until_ready(batch)
    return (time.perf_counter() - start) / num_batches


def bench_arrays(quick: bool) -> list[Row]:
    data = make_data()
    return [row for size in (64, 512, 4096) for row in compare_arrays(data, size, quick)]


def compare_arrays(data: tuple[np.ndarray, np.ndarray], size: int, quick: bool) -> list[Row]:
    sources: dict[str, Batches] = {
        "ready-made by hand": put_by_hand(ready_made(data, size)),
        "shuffled by hand": put_by_hand(gathered_by_hand(data, size)),
        "Replicax": with_replicax(data, size, shuffled=False),
        "Replicax, shuffled": with_replicax(data, size, shuffled=True),
    }
    contenders: dict[str, Callable[[int], float]] = {
        name: functools.partial(seconds_per_batch, batches) for name, batches in sources.items()
    }
    with contextlib.ExitStack() as stack:
        python = None if quick else python_with("tensorflow")
        if python is not None:
            for name, shuffled in (("TensorFlow", False), ("TensorFlow, shuffled", True)):
                settings = {"batch_size": np.array(size), "shuffled": np.array(shuffled)}
                beside = program_beside(
                    "input_tensorflow.py", python, images=data[0], labels=data[1], **settings
                )
                contenders[name] = stack.enter_context(beside)
        rounds = take_turns(
            contenders,
            num_rounds=5 if quick else 21,
            num_steps=max(20, 50_000 // size),
        )
    plain, shuffled = f"arrays, batch {size}", f"shuffled, batch {size}"
    rows = [
        compare(rounds, plain, "Replicax", ["ready-made by hand"]),
        compare(rounds, shuffled, "Replicax, shuffled", ["shuffled by hand"]),
        compare(rounds, shuffled, "Replicax, shuffled", ["ready-made by hand"]),
    ]
    if not quick:
        rows += [
            compare_or_dash(rounds, plain, "Replicax", "TensorFlow"),
            compare_or_dash(rounds, shuffled, "Replicax, shuffled", "TensorFlow, shuffled"),
        ]
    return rows


# Waiting.


def make_step(strategy: Any) -> Callable[[Any], Any]:
    """A training step of a 784-1024-1024-10 network."""
    random = np.random.default_rng(0)
    sizes = (NUM_FEATURES, 1024, 1024, 10)
    with strategy.scope():
        weights = [
            rx.Variable(
                random.normal(0, rows**-0.5, (rows, columns)).astype(np.float32),
                aggregation=rx.VariableAggregation.MEAN,
            )
            for rows, columns in itertools.pairwise(sizes)
        ]

    def loss_fn(values: list[Any], images: Any, labels: Any) -> Any:
        hidden = jax.nn.relu(jax.nn.relu(images @ values[0]) @ values[1])
        scores = jax.nn.log_softmax(hidden @ values[2])
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=-1))

    def replica_step(images: Any, labels: Any) -> Any:
        values = [w.value for w in weights]
        loss, gradients = jax.value_and_grad(loss_fn)(values, images, labels)
        for variable, gradient in zip(weights, gradients, strict=True):
            variable.assign_sub(1e-3 * gradient)
        return loss

    @rx.function
    def step(batch: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_step, args=batch), axis=None)

    return step


def bench_waiting(quick: bool) -> list[Row]:
    data, size = make_data(), 512
    strategy = two_replicas()
    step = make_step(strategy)
    arrays = rx.from_arrays(data).shuffle(seed=1).repeat().batch(size)
    num_steps = 30 if quick else 100
    step_seconds = loop(strategy, step, arrays, num_steps)[1]

    def slow_reader() -> Iterator[Any]:
        for batch in arrays:
            time.sleep(step_seconds / 2)
            yield batch

    rows = []
    for name, dataset in (("arrays", arrays), ("a reader that takes half as long", slow_reader)):
        stats, seconds = loop(strategy, step, dataset, num_steps)
        what = f"waiting, {name}: part of the time"
        waited = f"{shown(stats.wait_seconds / max(stats.steps - 1, 1))} waiting"
        rows.append(Row(what, "waiting", waited, "a step", shown(seconds), stats.wait_fraction))
    return rows


def loop(strategy: Any, step: Callable[[Any], Any], dataset: Any, num_steps: int) -> tuple[Any, float]:
    """What the iterator says about waiting, and the seconds of a step."""
    with iter(strategy.distribute_dataset(dataset)) as batches:
        jax.block_until_ready(step(next(batches)))
        start = time.perf_counter()
        for batch in itertools.islice(batches, num_steps):
            jax.block_until_ready(step(batch))
        return batches.stats(), (time.perf_counter() - start) / num_steps


BENCHMARKS = {"arrays": bench_arrays, "waiting": bench_waiting}

if __name__ == "__main__":
    sys.exit(run("How fast batches come to the devices.", BENCHMARKS, num_devices=2))
