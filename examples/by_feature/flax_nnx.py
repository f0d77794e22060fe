"""A Flax NNX model: `adopt` turns its parameters, statistics and random streams into variables.

Use the model as before. You need not split and merge it around a step: in a compiled step, its code runs
only while JAX traces the step. Needs Flax: pip install 'replicax[flax]'.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import replicax as rx
from replicax.integrations import flax as rx_flax

rx.set_cpu_devices(4)
strategy = rx.MirroredStrategy()


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(2, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.dropout(nnx.relu(self.norm(self.hidden(x))))
        return self.out(x)[:, 0]


with strategy.scope():
    model = rx_flax.adopt(Model(nnx.Rngs(0)))
    optimizer = rx.Optimizer(optax.adam(1e-2))
params = rx_flax.variables(model)
inference = nnx.view(model, deterministic=True, use_running_average=True)  # shares the variables


@rx.function
def train_step(batch: Any) -> jax.Array:
    def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
        def loss_fn(x: jax.Array, y: jax.Array) -> jax.Array:
            return rx.compute_average_loss((model(x) - y) ** 2)

        loss, gradients = rx.value_and_grad(loss_fn, params)(x, y)
        optimizer.apply_gradients(zip(gradients, params, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)


x = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2)).astype(np.float32)
y = x[:, 0] * x[:, 1]
dataset = strategy.distribute_dataset(rx.from_arrays((x, y)).shuffle(seed=0).batch(64))
for epoch in range(15):
    losses = [float(train_step(batch)) for batch in dataset]
    if epoch % 7 == 0:
        print(f"epoch {epoch:2d}  loss {np.mean(losses):.4f}")

error = float(jnp.mean((inference(jnp.asarray(x)) - y) ** 2))  # outside of replicas, an ordinary Flax model
print(f"mean squared error {error:.4f}; predicting zero would give {np.mean(y**2):.4f}")
rngs = model.dropout.rngs
assert rngs is not None
print(f"the dropout layer has used {int(rngs.count[...])} keys on each replica")
assert error < 0.03
assert int(rngs.count[...]) == int(optimizer.iterations.numpy()) == 15 * 16
