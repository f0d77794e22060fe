"""TensorFlow's half of the eager comparison in `overhead.py`, in a process of its own.

Reads a number of steps from each line of standard input and answers with the seconds per step of an
eager `tf.distribute.MirroredStrategy` on two CPU devices: the same small network, batch and updates.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

LEARNING_RATE = 1e-4


def make_step(state: list[np.ndarray], images: np.ndarray, labels: np.ndarray):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        variables = [tf.Variable(array) for array in state]

    def shard(array: np.ndarray):
        rows = len(array) // 2
        return strategy.experimental_distribute_values_from_function(
            lambda ctx: tf.constant(array[ctx.replica_id_in_sync_group * rows :][:rows])
        )

    def apply_gradients(strategy, gradients, loss):
        pairs = [(loss, loss), *zip(gradients, variables, strict=True)]
        loss, *means = strategy.extended.batch_reduce_to("MEAN", pairs)
        for variable, mean in zip(variables, means, strict=True):
            strategy.extended.update(variable, lambda v, g: v.assign_sub(LEARNING_RATE * g), args=(mean,))
        return loss

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(images @ variables[0] + variables[1])
            scores = hidden @ variables[2] + variables[3]
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
            )
        gradients = tape.gradient(loss, variables)
        context = tf.distribute.get_replica_context()
        return context.merge_call(apply_gradients, args=(gradients, loss))

    batch = (shard(images), shard(labels))
    return lambda: strategy.experimental_local_results(strategy.run(replica_step, args=batch))[0]


def main() -> None:
    arrays = np.load(sys.argv[1])
    state = [arrays[f"state{i}"] for i in range(4)]
    step = make_step(state, arrays["images"], arrays["labels"])
    for line in sys.stdin:
        num_steps = int(line)
        start = time.perf_counter()
        for _ in range(num_steps):
            loss = step()
        loss.numpy()
        print("seconds", (time.perf_counter() - start) / num_steps, flush=True)


if __name__ == "__main__":
    main()
