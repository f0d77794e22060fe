"""How fast two workers train with one and two parameter servers, on this machine, beside TensorFlow.

    python benchmarks/parameter_server.py [--quick] [--only mlp_1ps,embedding_2ps] [--peers PYTHON]

Every task is a process of its own on both sides: ours on Ray, TensorFlow's with `tf.distribute.Server`. A
step reads the variables, computes gradients and updates by plain gradient descent on the servers. A round
schedules some hundred steps and waits for all of them. The sides take turns. Bytes are those of values,
rows and gradients that Replicax sends and fetches, and for TensorFlow, which does not count them, what goes
over the loopback interface meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Iterator
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
import parameter_server_work as work
from harness import Rounds, compare, run, start_peers, take_turns
from rows import Row

import replicax as rx

NUM_WORKERS = 2
PEERS = {"TensorFlow": ("tensorflow", "parameter_server_tensorflow.py")}


def make_step(name: str, strategy: rx.ParameterServerStrategy) -> Any:
    with strategy.scope():
        params = rx.create_variables(work.parameters(name))
        optimizer = rx.Optimizer(optax.sgd(work.LEARNING_RATE))
    num_layers = len(params) // 2

    def loss_fn(x: Any, y: Any) -> Any:
        if name == "embedding":
            return jnp.mean((params["table"].sparse_read(x) @ params["w"].value - y) ** 2)
        for i in range(num_layers):
            x = x @ params[f"w{i}"].value + params[f"b{i}"].value
            x = jax.nn.relu(x) if i < num_layers - 1 else x
        return jnp.mean((x - y) ** 2)

    @rx.function
    def step(iterator: Any) -> Any:
        def replica_step(x: Any, y: Any) -> Any:
            return optimizer.minimize(lambda: loss_fn(x, y), params)

        strategy.run(replica_step, args=next(iterator))
        return rx.get_current_worker_index()

    return step


@final
class Training:
    """Two workers that train one of the models."""

    def __init__(self, name: str, strategy: rx.ParameterServerStrategy) -> None:
        self._strategy, self._coordinator = strategy, rx.ClusterCoordinator(strategy)
        self._step = make_step(name, strategy)

        def dataset_fn() -> Any:
            dataset = rx.from_arrays(work.examples(name, 0))
            return dataset.repeat().batch(work.batch_size(name))

        self._iterator = iter(self._coordinator.create_per_worker_dataset(dataset_fn))
        self._bytes: list[float] = []
        self._compile()

    def _compile(self) -> None:
        """Make steps until each worker has compiled its program."""
        found = set[int]()
        while len(found) < NUM_WORKERS:
            values = [self._coordinator.schedule(self._step, args=(self._iterator,)) for _ in range(20)]
            found.update(self._coordinator.fetch(values))

    def __call__(self, num_steps: int) -> float:
        before, start = self._moved(), time.perf_counter()
        for _ in range(num_steps):
            self._coordinator.schedule(self._step, args=(self._iterator,))
        self._coordinator.join()
        seconds = (time.perf_counter() - start) / num_steps
        self._bytes.append((self._moved() - before) / num_steps)
        return seconds

    def _moved(self) -> int:
        return sum(s["bytes_pulled"] + s["bytes_pushed"] for s in self._strategy.statistics())

    @property
    def bytes_per_step(self) -> float:
        return self._bytes[-1]


@contextlib.contextmanager
def training(name: str, num_ps: int) -> Iterator[Training]:
    divide = rx.MinSizePartitioner(work.DIVIDE_BYTES, max_shards=num_ps)
    strategy = rx.ParameterServerStrategy(
        num_ps=num_ps, num_workers=NUM_WORKERS, variable_partitioner=divide, snapshot_seconds=600.0
    )
    try:
        yield Training(name, strategy)
    finally:
        strategy.shutdown()


def bench(name: str, num_ps: int, quick: bool) -> list[Row]:
    workload = work.WORKLOADS[name]
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(training(name, num_ps))
        contenders: dict[str, Any] = {"Replicax": ours}
        given = {"workload": np.array(name), "num_ps": np.array(num_ps)}
        contenders |= {} if quick else start_peers(stack, PEERS, **given)
        rounds = take_turns(
            contenders,
            num_rounds=3 if quick else 9,
            num_steps=workload.steps_per_round // (4 if quick else 1),
        )
        theirs = contenders["TensorFlow"].results(20)[0] if "TensorFlow" in contenders else None
        return _rows(f"{workload.title}, {num_ps} ps", rounds, ours.bytes_per_step, theirs)


def _rows(title: str, rounds: Rounds, own_bytes: float, their_bytes: float | None) -> list[Row]:
    if their_bytes is None:
        alone = f"{1 / rounds.median('Replicax'):.0f} steps/s, {_megabytes(own_bytes)} a step"
        return [Row(title, "Replicax", alone, "TensorFlow", "-", float("nan"))]
    bytes_row = Row(
        f"{title}: moved in a step",
        "Replicax",
        _megabytes(own_bytes),
        "TensorFlow",
        _megabytes(their_bytes),
        own_bytes / their_bytes,
    )
    return [compare(rounds, title, "Replicax", ["TensorFlow"]), bytes_row]


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB"


BENCHMARKS = {
    f"{name}_{num_ps}ps": functools.partial(bench, name, num_ps)
    for name in work.WORKLOADS
    for num_ps in (1, 2)
}

if __name__ == "__main__":
    sys.exit(run("How fast two workers train with parameter servers.", BENCHMARKS, num_devices=1))
