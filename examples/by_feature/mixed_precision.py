"""Mixed precision: compute in 16 bits, but keep variables, gradients and their reduction in float32.

bfloat16 has the range of float32 and needs nothing else. float16 needs a loss scale. A dynamic one adapts:
if the gradients overflow, all replicas skip the update and the scale is halved.
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
x = rng.normal(size=(512, 8)).astype(np.float32)
y = np.tanh(x @ rng.normal(size=8)).astype(np.float32)


def train(compute_dtype: Any) -> int:
    half = compute_dtype == jnp.float16
    with strategy.scope():
        weights = rx.Variable(jnp.zeros(8))
        scale = rx.DynamicLossScale(initial_scale=2.0**24) if half else None  # too large, so it must adapt
        optimizer = rx.Optimizer(optax.adam(0.05), loss_scale=scale)

    def loss_fn(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        predictions = jnp.tanh(x @ weights.value)
        assert predictions.dtype == compute_dtype
        loss = rx.compute_average_loss((predictions - y).astype(jnp.float32) ** 2)
        return optimizer.scale_loss(loss), loss  # differentiate the first, report the second

    @rx.function
    def train_step(batch: Any) -> jax.Array:
        def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
            precision = rx.MixedPrecision(compute_dtype)
            differentiate = rx.value_and_grad(loss_fn, [weights], has_aux=True, precision=precision)
            (_, loss), gradients = differentiate(x, y)
            assert gradients[0].dtype == jnp.float32
            optimizer.apply_gradients(zip(gradients, [weights], strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    batches = strategy.distribute_dataset(rx.from_arrays((x, y)).batch(128).repeat(30))
    losses = [float(train_step(batch)) for batch in batches]
    left_out = len(losses) - int(optimizer.iterations.numpy())
    name = jnp.dtype(compute_dtype).name
    print(f"{name:8s}  loss {losses[0]:.3f} -> {losses[-1]:.4f}, updates left out: {left_out}")
    assert weights.dtype == jnp.float32 and losses[-1] < 0.01
    return left_out


assert train(jnp.float32) == 0
assert train(jnp.bfloat16) == 0
assert train(jnp.float16) > 0
