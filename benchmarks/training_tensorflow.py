"""TensorFlow's half of `training.py`, in a process of its own.

Reads a number of steps from each line of standard input and answers with the seconds per step and the
losses of a compiled training loop as TensorFlow's tutorials write it: `MirroredStrategy` on two CPU
devices, `tf.function`, a Keras optimizer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np
import tensorflow as tf
import training_work as work

# The models, from parameters and a batch to one loss for each example.


def dense(parameters: work.Parameters, name: str, x: Any) -> Any:
    return tf.matmul(x, parameters[f"{name}/kernel"]) + parameters[f"{name}/bias"]


def cross_entropy(scores: Any, labels: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)


def network_losses(parameters: work.Parameters, images: Any, labels: Any) -> Any:
    last = len(parameters) // 2 - 1
    hidden = images
    for i in range(last):
        hidden = tf.nn.relu(dense(parameters, f"dense{i}", hidden))
    return cross_entropy(dense(parameters, f"dense{last}", hidden), labels)


def convolutions_losses(parameters: work.Parameters, images: Any, labels: Any) -> Any:
    hidden = images
    for i in (0, 1):
        hidden = tf.nn.conv2d(hidden, parameters[f"convolution{i}/kernel"], 1, "VALID")
        hidden = tf.nn.relu(tf.nn.bias_add(hidden, parameters[f"convolution{i}/bias"]))
        hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
    hidden = tf.nn.relu(dense(parameters, "dense0", tf.reshape(hidden, [len(images), -1])))
    return cross_entropy(dense(parameters, "dense1", hidden), labels)


def norm(parameters: work.Parameters, name: str, x: Any) -> Any:
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    x = (x - mean) * tf.math.rsqrt(variance + work.NORM_EPSILON)
    return x * parameters[f"{name}/scale"] + parameters[f"{name}/bias"]


def transformer_losses(parameters: work.Parameters, tokens: Any, following: Any) -> Any:
    size = len(tokens)
    depth = work.WIDTH // work.NUM_HEADS
    causal = tf.constant(np.tril(np.ones((work.LENGTH, work.LENGTH), bool)))

    def attention(x: Any) -> Any:
        x = tf.reshape(x, [size, work.LENGTH, 3, work.NUM_HEADS, depth])
        queries, keys, values = tf.unstack(tf.transpose(x, [2, 0, 3, 1, 4]))
        scores = tf.matmul(queries, keys, transpose_b=True) / depth**0.5
        weights = tf.nn.softmax(tf.where(causal, scores, -1e30))
        mixed = tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3])
        return tf.reshape(mixed, [size * work.LENGTH, work.WIDTH])

    x = tf.gather(parameters["tokens"], tokens) + parameters["positions"]
    x = tf.reshape(x, [size * work.LENGTH, work.WIDTH])
    for i in range(work.NUM_BLOCKS):
        block = f"block{i}"
        mixed = attention(dense(parameters, f"{block}/attention", norm(parameters, f"{block}/norm0", x)))
        x += dense(parameters, f"{block}/project", mixed)
        wide = dense(parameters, f"{block}/widen", norm(parameters, f"{block}/norm1", x))
        x += dense(parameters, f"{block}/narrow", tf.nn.gelu(wide, approximate=True))
    scores = dense(parameters, "scores", norm(parameters, "norm", x))
    losses = cross_entropy(scores, tf.reshape(following, [-1]))
    return tf.reduce_mean(tf.reshape(losses, [size, work.LENGTH]), axis=-1)


def regressions_losses(parameters: work.Parameters, x: Any, y: Any) -> Any:
    losses = [tf.reduce_mean(tf.square(tf.matmul(x, kernel) - y), -1) for kernel in parameters.values()]
    return tf.add_n(losses)


LOSSES: dict[str, Callable[[work.Parameters, Any, Any], Any]] = {
    "network": network_losses,
    "convolutions": convolutions_losses,
    "transformer": transformer_losses,
    "regressions": regressions_losses,
}


# The loop.


def make_step(workload: work.Workload) -> Callable[[], Any]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * work.NUM_REPLICAS
    )
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(work.NUM_REPLICAS)])
    return make_step_with(strategy, workload)


def make_step_with(strategy: Any, workload: work.Workload) -> Callable[[], Any]:
    with strategy.scope():
        parameters = {
            name: tf.Variable(array, name=name.replace("/", "_"))
            for name, array in workload.parameters().items()
        }
        variables = list(parameters.values())
        optimizer = tf.keras.optimizers.Adam(work.LEARNING_RATE, work.BETA_1, work.BETA_2, work.EPSILON)
        optimizer.build(variables)
    losses_of = LOSSES[workload.model]

    def replica_step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = losses_of(parameters, inputs, targets)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=workload.batch_size)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @tf.function
    def step(inputs: Any, targets: Any) -> Any:
        losses = strategy.run(replica_step, args=(inputs, targets))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def shard(array: np.ndarray) -> Any:
        rows = len(array) // work.NUM_REPLICAS
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(array[context.replica_id_in_sync_group * rows :][:rows])
        )

    inputs, targets = map(shard, workload.batch())
    return lambda: step(inputs, targets)


def main() -> None:
    step = make_step(work.WORKLOADS[str(np.load(sys.argv[1])["workload"])])
    for line in sys.stdin:
        answer(step, int(line))


def answer(step: Callable[[], Any], num_steps: int, *, quiet: bool = False) -> None:
    """Make steps, and print their seconds and losses."""
    start = time.perf_counter()
    losses = [step() for _ in range(num_steps)]
    losses[-1].numpy()
    seconds = (time.perf_counter() - start) / num_steps
    if not quiet:
        print("seconds", seconds, *(float(loss) for loss in losses), flush=True)


if __name__ == "__main__":
    main()
