"""A linear regression on two replicas. The loop does not know how many there are."""

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

rx.set_cpu_devices(2)  # lets one CPU pose as two devices; machines with GPUs use those
strategy = rx.MirroredStrategy()

with strategy.scope():
    mean = rx.VariableAggregation.MEAN  # what the replicas write is averaged
    weights = rx.Variable(jnp.zeros(3), aggregation=mean, name="weights")
    bias = rx.Variable(0.0, aggregation=mean, name="bias")


def squared_error(weights, bias, x, y):
    return jnp.mean((x @ weights + bias - y) ** 2)


@rx.function  # compiled; drop the line and every replica is plain Python
def train_step(x, y):
    def replica_step(x, y):
        loss, (d_weights, d_bias) = jax.value_and_grad(squared_error, argnums=(0, 1))(
            weights.value, bias.value, x, y
        )
        weights.assign_sub(0.1 * d_weights)
        bias.assign_sub(0.1 * d_bias)
        return loss

    return strategy.reduce("MEAN", strategy.run(replica_step, args=(x, y)), axis=None)


x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
y = x @ np.array([1.0, -2.0, 3.0], np.float32) + 0.5
examples = rx.from_arrays((x, y)).shuffle(seed=0).batch(16)  # for all replicas together
dataset = strategy.distribute_dataset(examples)  # split over them, on their devices, read ahead

for epoch in range(26):
    for batch in dataset:
        loss = train_step(*batch)
    if epoch % 5 == 0:
        print(f"epoch {epoch:2d}  loss {float(loss):.6f}")
print("weights", weights.numpy().round(3), "bias", bias.numpy().round(3))
