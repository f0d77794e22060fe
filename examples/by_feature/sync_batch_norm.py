"""Batch normalization over the examples of all replicas, in plain functions.

Each replica sums its own examples; one `all_reduce` of the sums and counts gives the mean and variance of
the global batch, however it is split. Gradients flow through the `all_reduce`. For Flax models, use
`replicax.integrations.flax.SyncBatchNorm`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

rx.set_cpu_devices(4)
strategy = rx.MirroredStrategy()
MOMENTUM = 0.9

rng = np.random.default_rng(0)
x = (rng.normal(size=(30, 3)) * [1, 10, 100] + [0, 5, -50]).astype(np.float32)
y = (x @ [1.0, 0.1, 0.01]).astype(np.float32)

with strategy.scope():
    weights = rx.Variable(jnp.zeros(3))
    # All replicas write equal statistics, so "MEAN" stores what each of them writes.
    moving_mean = rx.Variable(jnp.zeros(3), trainable=False, aggregation="MEAN")
    moving_variance = rx.Variable(jnp.ones(3), trainable=False, aggregation="MEAN")
    optimizer = rx.Optimizer(optax.sgd(0.1))


def normalize(x: jax.Array) -> jax.Array:
    sums = [x.sum(0), (x * x).sum(0), jnp.float32(len(x))]
    total, squares, count = rx.get_replica_context().all_reduce("SUM", sums)
    mean = total / count
    variance = squares / count - mean**2
    moving_mean.assign(MOMENTUM * moving_mean + (1 - MOMENTUM) * mean)
    moving_variance.assign(MOMENTUM * moving_variance + (1 - MOMENTUM) * variance)
    return (x - mean) / jnp.sqrt(variance + 1e-5)


@rx.function
def train_step(batch: Any) -> jax.Array:
    def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
        def loss_fn() -> jax.Array:
            return rx.compute_average_loss((normalize(x) @ weights.value - y) ** 2)

        return optimizer.minimize(loss_fn, [weights])

    return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)


# Batches of 16 and 14 rows: replicas have 4, 4, 4, 4 and then 4, 4, 3, 3.
for batch in strategy.distribute_dataset(rx.from_arrays((x, y)).batch(16)):
    print(f"loss {float(train_step(batch)):.4f}")

# The same on one device, with NumPy.
expected, mean, variance = np.zeros(3), np.zeros(3), np.ones(3)
for a, b in ((x[:16], y[:16]), (x[16:], y[16:])):
    normalized = (a - a.mean(0)) / np.sqrt(a.var(0) + 1e-5)
    expected -= 0.1 * 2 * normalized.T @ (normalized @ expected - b) / len(a)
    mean = MOMENTUM * mean + (1 - MOMENTUM) * a.mean(0)
    variance = MOMENTUM * variance + (1 - MOMENTUM) * a.var(0)
np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-3)
np.testing.assert_allclose(moving_mean.numpy(), mean, rtol=1e-3)
np.testing.assert_allclose(moving_variance.numpy(), variance, rtol=1e-3)
print("weights and statistics are those of one device:", weights.numpy().round(4))
