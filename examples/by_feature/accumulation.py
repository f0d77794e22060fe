"""Gradient accumulation: train with a large batch in little memory, one part after the other.

With `microbatches=4`, the loss function sees a quarter of the replica's examples at a time. The gradients
are those of the whole batch, and they are reduced over the replicas once.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

rx.set_cpu_devices(4)
strategy = rx.MirroredStrategy()

rng = np.random.default_rng(0)
x = rng.normal(size=(256, 8)).astype(np.float32)
y = np.sin(x.sum(1)).astype(np.float32)
seen: set[tuple[int, int]] = set()


def train(microbatches: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with strategy.scope():
        start = np.random.default_rng(1)
        hidden = rx.Variable(0.3 * start.normal(size=(8, 32)).astype(np.float32), name="hidden")
        out = rx.Variable(0.3 * start.normal(size=32).astype(np.float32), name="out")
        optimizer = rx.Optimizer(optax.adam(1e-2))

    def loss_fn(x: jax.Array, y: jax.Array) -> jax.Array:
        seen.add((microbatches, len(x)))
        return rx.compute_average_loss((jnp.tanh(x @ hidden.value) @ out.value - y) ** 2)

    @rx.function
    def train_step(batch: Any) -> jax.Array:
        def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
            loss, gradients = rx.value_and_grad(loss_fn, [hidden, out], microbatches=microbatches)(x, y)
            optimizer.apply_gradients(zip(gradients, [hidden, out], strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    dataset = strategy.distribute_dataset(rx.from_arrays((x, y)).batch(128).repeat(20))
    losses = [float(train_step(batch)) for batch in dataset]
    print(f"microbatches={microbatches}: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    return np.array(losses), hidden.numpy(), out.numpy()


whole, in_parts = train(1), train(4)
for a, b in zip(whole, in_parts, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
assert seen == {(1, 32), (4, 8)}  # a replica gets 32 of 128 rows
print("the same losses and weights, from a quarter of the examples at a time")
