"""Partial batches on several workers are exact: losses, metrics and weights are those of one device.

Every case is a dataset whose batches do not divide evenly, or that ends at different steps on the workers.
The workers of one layout run all cases, since starting them takes most of the time.
"""

import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import quick_jax
from tests.environment import xla_flags

import replicax as rx
from replicax import testing

FOLDER = "REPLICAX_TEST_FOLDER"
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [3.0]]) + 0.5).astype(np.float32)


def batches(*sizes):
    """Batches of consecutive rows, which every worker goes through."""
    stops = np.cumsum(sizes)
    return [(X[stop - size : stop], Y[stop - size : stop]) for size, stop in zip(sizes, stops, strict=True)]


def write_files(folder):
    """Files of 9, 2, 5 and 1 row numbers; the workers' shares end at different steps."""
    for name, stop, size in zip("abcd", (9, 11, 16, 17), (9, 2, 5, 1), strict=True):
        (folder / f"{name}.txt").write_text(" ".join(map(str, range(stop - size, stop))))


def read_file(path):
    rows = [int(number) for number in Path(path).read_text().split()]
    return [(X[row], Y[row]) for row in rows]


def own_batches(context):
    """Worker i reads 9 - 4i rows."""
    i = context.input_pipeline_id
    rows = slice(12 * i, 12 * i + 9 - 4 * i)
    return rx.from_arrays((X[rows], Y[rows])).batch(4)


DATASETS = {
    "64 rows": lambda strategy: strategy.distribute_dataset(batches(64)),
    "remainders": lambda strategy: strategy.distribute_dataset(batches(7, 2)),
    "DATA": lambda strategy: strategy.distribute_dataset(
        rx.from_arrays((X[:14], Y[:14])).shuffle(seed=3).batch(12)
    ),
    "FILE": lambda strategy: strategy.distribute_dataset(
        rx.from_files(f"{os.environ[FOLDER]}/*.txt", read_file).batch(8),
        rx.InputOptions(auto_shard_policy="FILE"),
    ),
    "OFF": lambda strategy: strategy.distribute_dataset(
        batches(5), rx.InputOptions(auto_shard_policy="OFF")
    ),
    "function": lambda strategy: strategy.distribute_datasets_from_function(own_batches),
}
NUM_ROWS = {"64 rows": 64, "remainders": 9, "DATA": 14, "FILE": 17}


def train(strategy, dataset, compiled):
    with strategy.scope():
        params = rx.create_variables({"w": jnp.zeros((3, 1)), "b": jnp.zeros(1)})
        optimizer = rx.Optimizer(optax.adam(0.05))
        metric = rx.Mean("loss")

    def loss_fn(x, y):
        p = rx.read_values(params)
        errors = jnp.sum((x @ p["w"] + p["b"] - y) ** 2, axis=-1)
        metric.update_state(errors)
        return rx.compute_average_loss(errors), errors

    def replica_step(x, y):
        (loss, errors), gradients = rx.value_and_grad(loss_fn, params, has_aux=True)(x, y)
        optimizer.apply_gradients(zip(gradients.values(), params.values(), strict=True))
        return loss, errors

    def step(x, y):
        loss, errors = strategy.run(replica_step, args=(x, y))
        return strategy.reduce("SUM", loss, axis=None), strategy.reduce("MEAN", errors, axis=0), errors

    step = rx.function(step) if compiled else step
    numbers, whole_batches = [], []
    for batch in dataset:
        loss, mean, errors = step(*batch)
        numbers += [float(loss), float(mean), float(strategy.reduce("SUM", errors, axis=0))]
        numbers += np.asarray(strategy.gather(errors, axis=0)).tolist()
        whole_batches.append(tuple(np.asarray(strategy.gather(part, axis=0)) for part in batch))
    return [*numbers, float(metric.result()), *params["w"].numpy().ravel().tolist()], whole_batches


def on_workers(cases):
    """The numbers of each case, and the batches of all workers together."""
    quick_jax.install()
    strategy = rx.MultiWorkerMirroredStrategy()
    return {
        (name, compiled): train(strategy, DATASETS[name](strategy), compiled) for name, compiled in cases
    }


COMPILED = [(name, True) for name in DATASETS]
EAGER = [(name, False) for name in DATASETS]


@pytest.mark.parametrize(
    ("num_workers", "per_worker", "cases"),
    [
        pytest.param(3, 1, COMPILED, id="3x1"),
        pytest.param(2, 2, [("remainders", True), ("remainders", False)], id="2x2"),
        pytest.param(2, 1, COMPILED + EAGER, id="2x1, all", marks=pytest.mark.long),
        pytest.param(2, 2, COMPILED + EAGER, id="2x2, all", marks=pytest.mark.long),
        pytest.param(3, 1, COMPILED + EAGER, id="3x1, all", marks=pytest.mark.long),
    ],
)
def test_partial_batches_give_the_numbers_of_one_device(num_workers, per_worker, cases, subtests, tmp_path):
    write_files(tmp_path)
    workers = testing.run(
        on_workers,
        (cases,),
        num_workers=num_workers,
        devices_per_worker=per_worker,
        environment={"XLA_FLAGS": xla_flags(), FOLDER: str(tmp_path)},
        timeout_seconds=280,
    )
    one = rx.OneDeviceStrategy("CPU:0")
    for name, compiled in cases:
        with subtests.test(name, compiled=compiled):
            _, whole_batches = workers[0][name, compiled]
            alone, _ = train(one, one.distribute_dataset(whole_batches), compiled=True)
            if name in NUM_ROWS:
                assert sum(len(x) for x, _ in whole_batches) == NUM_ROWS[name]
            for worker in workers:
                np.testing.assert_allclose(worker[name, compiled][0], alone, rtol=1e-5, atol=1e-6)
