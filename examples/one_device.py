"""Linear regression with JAX and optax on one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

params = {"bias": jnp.zeros(()), "weights": jnp.zeros(3)}
optimizer = optax.adam(0.1)
state = optimizer.init(params)


def loss_fn(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    errors = (x @ params["weights"] + params["bias"] - y) ** 2
    return jnp.mean(errors)


@jax.jit
def train_step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_fn)(params, x, y)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, loss


x = np.random.default_rng(0).normal(size=(70, 3)).astype(np.float32)
y = x @ np.array([1.0, -2.0, 3.0], np.float32) + 0.5

loss: jax.Array | float = np.inf
for epoch in range(31):
    for i in range(0, len(x), 16):
        params, state, loss = train_step(params, state, x[i : i + 16], y[i : i + 16])
    if epoch % 5 == 0:
        print(f"epoch {epoch:2d}  loss {float(loss):.4f}")
print("weights", np.asarray(params["weights"]).round(2), "bias", np.asarray(params["bias"]).round(2))
