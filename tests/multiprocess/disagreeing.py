"""Workers that disagree about what to run: every one of them stops with an error that names the others'.

Unlike in the cases of `mismatch_cases.py`, one worker has already started a known step, which can't be
taken back. The log of collectives shows it, and all workers are stopped.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax import testing

STEPS = 200


def make():
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)

    @rx.function
    def train(x):
        strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(x,))
        return total.read_value()

    return strategy, train


def skip_a_step():
    """Rank 1 leaves out a batch; all later steps have different batches."""
    strategy, train = make()
    dataset = strategy.distribute_dataset(rx.from_arrays(np.ones(4 * STEPS, np.float32)).batch(4))
    for number, batch in enumerate(dataset):
        if testing.rank() == 1 and number == 3:
            continue
        jax.block_until_ready(train(batch))
        time.sleep(0.02)  # long enough for the others to notice before the end


def run_another_step():
    """Rank 1 runs another step than the known one that rank 0 goes on with."""
    strategy, train = make()
    evaluate = rx.function(lambda x: strategy.reduce("MEAN", x, axis=0))
    x = strategy.distribute_values_from_function(lambda ctx: np.ones(3, np.float32))
    for _ in range(3):
        train(x)
    jax.block_until_ready((evaluate if testing.rank() == 1 else train)(x))


def have_fewer_rows():
    """Rank 1 has another number of rows in its last batch."""
    strategy, train = make()
    for number in range(4):
        rows = 2 if testing.rank() == 1 and number == 3 else 3
        x = strategy.distribute_values_from_function(lambda ctx, rows=rows: np.ones(rows, np.float32))
        jax.block_until_ready(train(x))
