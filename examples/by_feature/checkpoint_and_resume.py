"""Stop in the middle of an epoch and resume on a different number of devices, with the same weights.

The checkpoint holds the weights, the optimizer's state, the position in the shuffled dataset and a random
key. None of them depends on the number of replicas.
"""

import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

rx.set_cpu_devices(4)
STEPS = 12

rng = np.random.default_rng(0)
x = rng.normal(size=(50, 3)).astype(np.float32)
y = (x @ [1.0, -2.0, 3.0]).astype(np.float32)


class Training:
    def __init__(self, num_devices: int, folder: str) -> None:
        self.strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
        with self.strategy.scope():
            self.weights = rx.Variable(jnp.zeros(3), name="weights")
            self.optimizer = rx.Optimizer(optax.adam(0.05))
        examples = rx.from_arrays((x, y)).shuffle(seed=1).repeat().batch(8)
        checkpoint = rx.Checkpoint(
            weights=self.weights,
            optimizer=self.optimizer,
            iterator=iter(self.strategy.distribute_dataset(examples)),
            key=jax.random.key(0),
        )
        self.checkpoint = checkpoint
        self.manager = rx.CheckpointManager(checkpoint, folder, max_to_keep=2)
        self.next_step = (self.manager.restore_or_initialize() or 0) + 1
        self.step = rx.function(self.make_step())

    def make_step(self) -> Callable[[Any, jax.Array], jax.Array]:
        def step(batch: Any, key: jax.Array) -> jax.Array:
            def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
                noise = jax.random.normal(key, (3,))  # the same for all replicas
                return self.optimizer.minimize(
                    lambda: rx.compute_average_loss((x @ (self.weights.value + 0.01 * noise) - y) ** 2),
                    [self.weights],
                )

            losses = self.strategy.run(replica_step, args=batch)
            return self.strategy.reduce("SUM", losses, axis=None)

        return step

    def run(self, until: int) -> np.ndarray:
        loss: jax.Array | float = np.inf
        for number in range(self.next_step, until + 1):
            self.checkpoint.key, own = jax.random.split(self.checkpoint.key)
            loss = self.step(next(self.checkpoint.iterator), own)
            self.manager.save(number)
        self.checkpoint.iterator.close()
        self.manager.close()
        count = self.strategy.num_replicas_in_sync
        print(f"{count} replicas, steps {self.next_step} to {until}: loss {loss:.4f}")
        return self.weights.numpy()


straight = Training(4, tempfile.mkdtemp()).run(until=STEPS)

folder = tempfile.mkdtemp()
Training(4, folder).run(until=5)  # then the machine is switched off
resumed = Training(2, folder)  # another machine, with two devices
assert resumed.next_step == 6
np.testing.assert_allclose(resumed.run(until=STEPS), straight, rtol=1e-5, atol=1e-6)
print("the same weights:", straight.round(3))
