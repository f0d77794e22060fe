"""Batches that do not divide evenly among the replicas: exact, padded or dropped.

With 22 examples in batches of 8 on four replicas, the last batch has 6 examples: two replicas get two of
them, and two get one. `rx.compute_average_loss` divides by the number of examples on all replicas.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

rx.set_cpu_devices(4)
strategy = rx.MirroredStrategy()

rng = np.random.default_rng(0)
x = rng.normal(size=(22, 3)).astype(np.float32)
y = (x @ [1.0, -2.0, 3.0] + 0.5).astype(np.float32)


def train(partial_batch: Literal["exact", "pad", "drop"]) -> tuple[np.ndarray, int]:
    """Train for one epoch; return the weights and the number of compiled programs."""
    with strategy.scope():
        weights = rx.Variable(jnp.zeros(3))
        optimizer = rx.Optimizer(optax.sgd(0.1))

    @rx.function
    def train_step(batch: Any) -> jax.Array:
        def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
            def loss_fn() -> jax.Array:
                return rx.compute_average_loss((x @ weights.value - y) ** 2)

            return optimizer.minimize(loss_fn, [weights])

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    options = rx.InputOptions(partial_batch=partial_batch)
    for batch in strategy.distribute_dataset(rx.from_arrays((x, y)).batch(8), options):
        sizes = [len(part) for part in strategy.local_results(batch[0])]
        print(f"{partial_batch:5s}  rows of the replicas: {sizes}  loss {float(train_step(batch)):.4f}")
    return weights.numpy(), train_step.num_programs


def by_hand(num_examples: int) -> np.ndarray:
    weights = np.zeros(3, np.float32)
    for start in range(0, num_examples, 8):
        a, b = x[start : min(start + 8, num_examples)], y[start : min(start + 8, num_examples)]
        weights -= 0.1 * 2 * a.T @ (a @ weights - b) / len(a)
    return weights


exact, exact_programs = train("exact")  # the default: every replica gets its own rows
padded, padded_programs = train("pad")  # all steps have one shape, and padding does not count
dropped, _ = train("drop")
np.testing.assert_allclose(exact, by_hand(22), rtol=1e-4)
np.testing.assert_allclose(padded, by_hand(22), rtol=1e-4)
np.testing.assert_allclose(dropped, by_hand(16), rtol=1e-4)
assert (exact_programs, padded_programs) == (2, 1)
print(f"exact and padded agree with NumPy; programs compiled: {exact_programs} and {padded_programs}")
