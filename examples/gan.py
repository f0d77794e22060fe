"""A generative adversarial network with two optimizers: it learns to draw points from a ring.

The generator makes points from noise; the discriminator tells them from real ones. One step updates both,
each with its own optimizer and with gradients with respect to its own variables only.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

rx.set_cpu_devices(4)  # lets one CPU pose as four devices; machines with GPUs use those
strategy = rx.MirroredStrategy()

BATCH_SIZE, NOISE, STEPS = 128, 4, 1000


def make_ring(count: int, rng: np.random.Generator) -> np.ndarray:
    angles = rng.uniform(0, 2 * np.pi, count)
    radius = 1 + 0.05 * rng.normal(size=count)
    return (radius * np.stack([np.cos(angles), np.sin(angles)])).T.astype(np.float32)


def make_network(rng: np.random.Generator, *sizes: int) -> list[dict[str, np.ndarray]]:
    return [
        {
            "weights": (rng.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32),
            "bias": np.zeros(b, np.float32),
        }
        for a, b in itertools.pairwise(sizes)
    ]


def apply(network: Any, x: jax.Array) -> jax.Array:
    for layer in network[:-1]:
        x = jax.nn.leaky_relu(x @ layer["weights"] + layer["bias"], 0.2)
    return x @ network[-1]["weights"] + network[-1]["bias"]


def leaves(structure: Any) -> list[rx.Variable]:
    return jax.tree.leaves(structure, is_leaf=lambda x: isinstance(x, rx.Variable))


rng = np.random.default_rng(0)
with strategy.scope():
    generator = rx.create_variables(make_network(rng, NOISE, 32, 32, 2), name="generator")
    discriminator = rx.create_variables(make_network(rng, 2, 32, 32, 1), name="discriminator")
    generator_optimizer = rx.Optimizer(optax.adam(1e-3, b1=0.5), name="generator_optimizer")
    discriminator_optimizer = rx.Optimizer(optax.adam(2e-3, b1=0.5), name="discriminator_optimizer")


def losses(points: jax.Array, is_real: bool) -> jax.Array:
    scores = apply(rx.read_values(discriminator), points)[:, 0]
    return optax.sigmoid_binary_cross_entropy(scores, jnp.full(scores.shape, float(is_real)))


def replica_step(real: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    key = rx.get_replica_context().rng(jax.random.fold_in(jax.random.key(0), step))  # the replica's own
    noise = jax.random.normal(key, (real.shape[0], NOISE))

    def discriminator_loss() -> jax.Array:
        fake = apply(rx.read_values(generator), noise)
        return rx.compute_average_loss(losses(real, True) + losses(fake, False))

    def generator_loss() -> jax.Array:
        return rx.compute_average_loss(losses(apply(rx.read_values(generator), noise), True))

    return (
        discriminator_optimizer.minimize(discriminator_loss, leaves(discriminator)),
        generator_optimizer.minimize(generator_loss, leaves(generator)),
    )


@rx.function
def train_step(real: Any, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    return strategy.reduce("SUM", strategy.run(replica_step, args=(real, step)), axis=None)


def radii(count: int) -> tuple[np.ndarray, np.ndarray]:
    noise = np.random.default_rng(1).normal(size=(count, NOISE)).astype(np.float32)
    points = np.asarray(apply(rx.read_values(generator), jnp.asarray(noise)))
    return np.linalg.norm(points, axis=1), np.arctan2(points[:, 1], points[:, 0])


points = rx.from_arrays(make_ring(4096, rng)).shuffle(seed=0).repeat().batch(BATCH_SIZE)
with iter(strategy.distribute_dataset(points)) as batches:
    for step in range(STEPS):
        loss = train_step(next(batches), jnp.int32(step))
        if step % 200 == 0 or step == STEPS - 1:
            radius, _ = radii(1000)
            print(
                f"step {step:4d}  discriminator {float(loss[0]):.3f}  generator {float(loss[1]):.3f}  "
                f"radius of the drawn points {radius.mean():.2f} +- {radius.std():.2f}"
            )

radius, angle = radii(1000)
sectors = np.histogram(angle, bins=8, range=(-np.pi, np.pi))[0]
print("points drawn in each eighth of the ring:", sectors)
assert abs(radius.mean() - 1) < 0.15 and radius.std() < 0.25, (radius.mean(), radius.std())
assert (sectors > 0).sum() >= 6, "the generator draws only a part of the ring"
