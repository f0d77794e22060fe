"""TensorFlow's half of `input.py`, in a process of its own.

Reads a number of batches from each line of standard input and answers with the seconds per batch of
`tf.data` and `experimental_distribute_dataset` on two CPU devices.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf


def main() -> None:
    work = np.load(sys.argv[1])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    dataset = tf.data.Dataset.from_tensor_slices((work["images"], work["labels"]))
    if work["shuffled"]:
        dataset = dataset.shuffle(10_000)
    dataset = dataset.repeat().batch(int(work["batch_size"]), drop_remainder=True)
    batches = iter(strategy.experimental_distribute_dataset(dataset.prefetch(tf.data.AUTOTUNE)))
    for line in sys.stdin:
        num_batches = int(line)
        start = time.perf_counter()
        for _ in range(num_batches):
            images, _labels = next(batches)
            for part in strategy.experimental_local_results(images):
                part[0, 0].numpy()  # it is there
        print("seconds", (time.perf_counter() - start) / num_batches, flush=True)


if __name__ == "__main__":
    main()
