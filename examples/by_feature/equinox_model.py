"""An Equinox model: `adopt` turns its arrays into variables and returns an object that you call like it.

Needs Equinox: pip install 'replicax[equinox]'.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
from replicax.integrations import equinox as rx_equinox

rx.set_cpu_devices(4)
strategy = rx.MirroredStrategy()

with strategy.scope():
    mlp = eqx.nn.MLP(2, "scalar", width_size=32, depth=2, key=jax.random.key(0))
    model = rx_equinox.adopt(mlp)
    optimizer = rx.Optimizer(optax.adam(3e-3))


@rx.function
def train_step(batch: Any) -> jax.Array:
    def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
        def loss_fn(x: jax.Array, y: jax.Array) -> jax.Array:
            return rx.compute_average_loss((jax.vmap(model)(x) - y) ** 2)

        loss, gradients = rx.value_and_grad(loss_fn, model.variables)(x, y)
        optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)


x = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2)).astype(np.float32)
y = x[:, 0] * x[:, 1]
dataset = strategy.distribute_dataset(rx.from_arrays((x, y)).shuffle(seed=0).batch(64))
for epoch in range(15):
    losses = [float(train_step(batch)) for batch in dataset]
    if epoch % 7 == 0:
        print(f"epoch {epoch:2d}  loss {np.mean(losses):.5f}")

trained = model.model  # an Equinox model again, with the trained arrays
error = float(jnp.mean((jax.vmap(trained)(x) - y) ** 2))
print(f"{type(trained).__name__}: mean squared error {error:.5f}, of zeros {np.mean(y**2):.5f}")
assert isinstance(trained, eqx.nn.MLP) and error < 0.01
