"""A custom training loop on several workers that continues after a failure.

To use all GPUs of this machine, split between two workers, or two CPU devices:

    python -m replicax launch --workers 2 --max-restarts 3 examples/resumable_training.py

The checkpoint holds the weights, the optimizer and the position in the dataset, so the losses match those
of a run that never failed. To see that, pass `--fail-at 25`, which makes the last worker fail after step
25. A preempted program (SIGTERM) also saves a checkpoint before it exits.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import optax
from images import make_images, make_weights

import replicax as rx

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument(
    "--folder", type=Path, default=Path(tempfile.gettempdir(), "replicax_resumable_training")
)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument(
    "--fail-at", type=int, metavar="STEP", help="fail once after this step, to see a restart"
)
arguments = parser.parse_args()

strategy = rx.MultiWorkerMirroredStrategy()  # before anything else uses JAX: connects the workers
is_first = strategy.extended.should_checkpoint
is_last = jax.process_index() == jax.process_count() - 1

with strategy.scope():
    weights = rx.create_variables(make_weights())
    optimizer = rx.Optimizer(optax.adam(3e-3))
    step = rx.Variable(0)


def predict(images: jax.Array) -> jax.Array:
    values = rx.read_values(weights)
    x = images
    for name in ("conv1", "conv2"):
        kernel, bias = values[name]
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=layout)
        x = jax.nn.relu(x + bias)
    x = x.reshape(x.shape[0], -1)
    for name in ("dense1", "dense2"):
        kernel, bias = values[name]
        x = (x if name == "dense1" else jax.nn.relu(x)) @ kernel + bias
    return x


def replica_step(images: jax.Array, labels: jax.Array) -> jax.Array:
    def loss_fn() -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(predict(images), labels)
        return rx.compute_average_loss(losses)

    return optimizer.minimize(loss_fn, weights)


@rx.function
def train_step(batch: Any) -> jax.Array:
    return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)


# Every worker passes the whole dataset in global batches, and gets the rows of its own replicas.
examples = rx.from_arrays(make_images(1000, seed=1)).shuffle(seed=0).repeat().batch(64)
iterator = iter(strategy.distribute_dataset(examples))
checkpoint = rx.Checkpoint(weights=weights, optimizer=optimizer, iterator=iterator, step=step)
manager = rx.CheckpointManager(checkpoint, arguments.folder, max_to_keep=2)
handler = rx.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)  # restores the newest one
start = int(step.numpy())
if is_first:
    print(f"{jax.process_count()} worker(s), {strategy.num_replicas_in_sync} replica(s), from step {start}")

for number in range(start, arguments.steps):
    loss = train_step(next(iterator))
    step.assign(number + 1)
    if number % 10 == 9:
        manager.save()  # in the background; all workers call it, and the first one writes
    if is_first and number % 5 == 4:
        print(f"step {number + 1}  loss {float(loss):.6f}")
    if number + 1 == arguments.fail_at and is_last and os.environ.get("REPLICAX_RESTART_COUNT") == "0":
        raise RuntimeError(f"failing after step {number + 1}, as --fail-at says")
    handler.save_checkpoint_if_preempted()  # after SIGTERM: saves and exits with status 0
manager.close()
iterator.close()
