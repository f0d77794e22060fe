"""Linear regression on two replicas. The loop does not depend on how many there are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

rx.set_cpu_devices(2)  # lets one CPU pose as two devices; machines with GPUs use those
strategy = rx.MirroredStrategy()

with strategy.scope():  # variables made here have a copy on every device
    params = rx.create_variables({"bias": jnp.zeros(()), "weights": jnp.zeros(3)})
    optimizer = rx.Optimizer(optax.adam(0.1))


def loss_fn(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    errors = (x @ params["weights"] + params["bias"] - y) ** 2
    return rx.compute_average_loss(errors)  # over the examples of all replicas


def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
    loss, gradients = jax.value_and_grad(loss_fn)(params, x, y)
    optimizer.apply_gradients(gradients, params)
    return loss


@rx.function  # compiled; drop the line and every replica is plain Python
def train_step(batch: Any) -> jax.Array:
    return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)


x = np.random.default_rng(0).normal(size=(70, 3)).astype(np.float32)
y = x @ np.array([1.0, -2.0, 3.0], np.float32) + 0.5
dataset = strategy.distribute_dataset(rx.from_arrays((x, y)).batch(16))  # for all replicas together

loss: jax.Array | float = np.inf
for epoch in range(31):
    for batch in dataset:
        loss = train_step(batch)
    if epoch % 5 == 0:
        print(f"epoch {epoch:2d}  loss {float(loss):.4f}")
print("weights", np.asarray(params["weights"]).round(2), "bias", np.asarray(params["bias"]).round(2))
