"""Dropout that does not depend on the number of replicas: a random key for every example.

A key for every replica is simpler (`rx.get_replica_context().rng(key)`), but then the masks change with the
number of replicas. Here the dataset has the examples' indices, and `rx.example_keys` derives a key from
each, so one device and four draw the same masks and reach the same weights.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

rx.set_cpu_devices(4)

rng = np.random.default_rng(0)
x = rng.normal(size=(60, 8)).astype(np.float32)
y = np.sin(x.sum(1)).astype(np.float32)
RATE = 0.5


def dropout(keys: jax.Array, x: jax.Array) -> jax.Array:
    def keep(key: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, 1 - RATE, x.shape[1:])

    return jnp.where(jax.vmap(keep)(keys), x / (1 - RATE), 0)


def train(num_devices: int) -> tuple[np.ndarray, np.ndarray]:
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
    with strategy.scope():
        start = np.random.default_rng(1)
        hidden = rx.Variable(0.3 * start.normal(size=(8, 32)).astype(np.float32), name="hidden")
        out = rx.Variable(0.3 * start.normal(size=32).astype(np.float32), name="out")
        optimizer = rx.Optimizer(optax.sgd(0.05))

    @rx.function
    def train_step(batch: Any) -> jax.Array:
        def replica_step(index: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
            step = optimizer.iterations.value  # new masks in each step
            step_key = jax.random.fold_in(jax.random.key(0), step)
            keys = rx.example_keys(step_key, index)

            def loss_fn() -> jax.Array:
                predictions = dropout(keys, jnp.tanh(x @ hidden.value)) @ out.value
                return rx.compute_average_loss((predictions - y) ** 2)

            return optimizer.minimize(loss_fn, [hidden, out])

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    examples = rx.from_arrays((np.arange(len(x)), x, y)).shuffle(seed=2).batch(16).repeat(5)
    losses = [float(train_step(batch)) for batch in strategy.distribute_dataset(examples)]
    print(f"{num_devices} device(s): loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    return np.array(losses), hidden.numpy()


(one_losses, one), (four_losses, four) = train(1), train(4)
np.testing.assert_allclose(one_losses, four_losses, rtol=1e-4)
np.testing.assert_allclose(one, four, rtol=1e-3, atol=1e-5)
print("the same masks, losses and weights")
