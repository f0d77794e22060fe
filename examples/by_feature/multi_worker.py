"""Several workers: every process runs the same program, and they connect when it creates the strategy.

Started alone, it is a single worker. For two on one machine:

    python -m replicax launch --workers 2 multi_worker.py

On two machines, start it on each, with the addresses of both and its own index:

    export CLUSTER='{"worker": ["host0:2222", "host1:2222"]}'
    TF_CONFIG='{"cluster": '$CLUSTER', "task": {"type": "worker", "index": 0}}' python multi_worker.py

With Slurm's `srun`, you need no TF_CONFIG.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

rx.set_cpu_devices(4)  # before the strategy, which uses the first CPU device, or all GPUs
strategy = rx.MultiWorkerMirroredStrategy()  # before anything else uses JAX: connects the workers
resolver = strategy.cluster_resolver
num_workers = len(resolver.cluster_spec().as_dict().get("worker", ())) or 1
if "TF_CONFIG" not in os.environ and __doc__:
    print(__doc__.split("\n\n", 1)[1])
print(f"worker {resolver.task_id or 0} of {num_workers}, {strategy.num_replicas_in_sync} replica(s) in all")

with strategy.scope():
    weights = rx.Variable(jnp.zeros(3))  # starts with the first worker's value
    optimizer = rx.Optimizer(optax.adam(0.1))


@rx.function
def train_step(batch: Any) -> jax.Array:
    def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
        def loss_fn() -> jax.Array:
            return rx.compute_average_loss((x @ weights.value - y) ** 2)

        return optimizer.minimize(loss_fn, [weights])

    return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)


x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
y = (x @ [1.0, -2.0, 3.0]).astype(np.float32)
# Every worker passes the whole dataset in global batches, and gets the rows of its own replicas.
examples = rx.from_arrays((x, y)).shuffle(seed=0).batch(16)
dataset = strategy.distribute_dataset(examples, rx.InputOptions(partial_batch="pad"))
loss: jax.Array | float = np.inf
for _ in range(15):
    for batch in dataset:
        loss = train_step(batch)
print(f"loss {float(loss):.6f}, weights {weights.numpy().round(3)}")
np.testing.assert_allclose(weights.numpy(), [1, -2, 3], atol=0.02)
