"""A step to explain: two matrices, Adam, and a loss over all replicas."""

import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

ROWS, WIDTH, HIDDEN = 4, 256, 512
NUM_PARAMETERS = WIDTH * HIDDEN + HIDDEN * WIDTH + 3


def make_step(strategy, *, microbatches=1):
    """A step of a small network, and a batch with `ROWS` rows for each replica."""
    with strategy.scope():
        params = rx.create_variables(
            {
                "hidden": jnp.ones((WIDTH, HIDDEN)) / WIDTH,
                "out": jnp.ones((HIDDEN, WIDTH)) / HIDDEN,
                "bias": jnp.zeros(3),
            }
        )
        optimizer = rx.Optimizer(optax.adam(1e-3))

    def loss(x):
        hidden = jnp.tanh(x @ params["hidden"])
        return rx.compute_average_loss(jnp.mean(hidden @ params["out"], axis=-1) + jnp.sum(params["bias"]))

    def replica_step(x):
        value, gradients = rx.value_and_grad(loss, params, microbatches=microbatches)(x)
        optimizer.apply_gradients(gradients, params)
        return value

    @rx.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    return step, params, optimizer


def batch_for(strategy):
    rows = np.ones((ROWS * strategy.num_replicas_in_sync, WIDTH), np.float32)
    (batch,) = strategy.distribute_dataset(rx.from_arrays(rows).batch(len(rows)))
    return batch
