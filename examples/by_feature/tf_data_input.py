"""Input as TensorFlow users write it: `replicax.tf.data`, without TensorFlow.

If TensorFlow is installed, `strategy.distribute_dataset` also takes TensorFlow's own `tf.data.Dataset`s:
replace the import with `import tensorflow as tf`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
import replicax.tf as tf

rx.set_cpu_devices(4)
strategy = rx.MirroredStrategy()

x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
y = (x @ [1.0, -2.0, 3.0]).astype(np.float32)


def double(row: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {"x": row["x"] * 2, "y": row["y"] * 2}


def is_small(row: dict[str, jax.Array]) -> jax.Array:
    return abs(row["x"][0]) < 4


dataset = (
    tf.data.Dataset.from_tensor_slices({"x": x, "y": y})
    .shuffle(200, seed=1)
    .map(double, num_parallel_calls=tf.data.AUTOTUNE)
    .filter(is_small)
    .batch(16)
    .prefetch(tf.data.AUTOTUNE)
)
print(dataset.element_spec)

with strategy.scope():
    weights = rx.Variable(jnp.zeros(3))
    optimizer = rx.Optimizer(optax.adam(0.1))


@rx.function
def train_step(batch: Any) -> jax.Array:
    def replica_step(batch: dict[str, jax.Array]) -> jax.Array:
        def loss_fn() -> jax.Array:
            return rx.compute_average_loss((batch["x"] @ weights.value - batch["y"]) ** 2)

        return optimizer.minimize(loss_fn, [weights])

    return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)


distributed = strategy.distribute_dataset(dataset)
loss: jax.Array | float = np.inf
for _ in range(15):
    for batch in distributed:
        loss = train_step(batch)
print(f"loss {float(loss):.6f}, weights {weights.numpy().round(3)}")
np.testing.assert_allclose(weights.numpy(), [1, -2, 3], atol=0.02)
