"""Keras' part of `sharded.py`, in a process of its own: `ModelParallel` on two CPU devices, with JAX.

Reads a number of steps from each line of standard input and answers with the seconds per step and the
losses. The model is one Keras layer with the weights and the arithmetic of `training.py`; dividing them,
differentiating and updating is Keras' work.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import sharded_by_hand as by_hand
import training
import training_work as work


def keras_name(name: str) -> str:
    return name.replace("/", ".")


class Losses(keras.Model):
    """From a batch to the loss of each example."""

    def __init__(self, workload: work.Workload) -> None:
        super().__init__()
        self._losses_of = training.LOSSES[workload.model]
        self._arrays = {
            name: self.add_weight(
                shape=array.shape, initializer=lambda *_, a=array, **__: a, name=keras_name(name)
            )
            for name, array in workload.parameters().items()
        }

    def call(self, batch: Any) -> Any:
        return self._losses_of({name: v.value for name, v in self._arrays.items()}, *batch)


def layout_map(workload: work.Workload, mesh: keras.distribution.DeviceMesh) -> Any:
    """Divide the variables that the other sides divide."""
    found = keras.distribution.LayoutMap(mesh)
    for name, array in workload.parameters().items():
        axes = [None if axis is None else "batch" for axis in by_hand.spec_of(array, 2)]
        found[f".*{re.escape(keras_name(name))}$"] = tuple(axes + [None] * (array.ndim - len(axes)))
    return found


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 2)
    workload = work.WORKLOADS[str(np.load(sys.argv[1])["workload"])]
    mesh = keras.distribution.DeviceMesh((2,), ("batch",), keras.distribution.list_devices("cpu"))
    distribution = keras.distribution.ModelParallel(
        layout_map=layout_map(workload, mesh), batch_dim_name="batch"
    )
    keras.distribution.set_distribution(distribution)
    model = Losses(workload)
    adam = keras.optimizers.Adam(work.LEARNING_RATE, work.BETA_1, work.BETA_2, work.EPSILON)
    model.compile(optimizer=adam, loss=lambda _, losses: losses)
    batch = workload.batch()
    nothing = np.zeros(workload.batch_size, np.float32)
    for line in sys.stdin:
        start = time.perf_counter()
        losses = [float(model.train_on_batch(batch, nothing)) for _ in range(int(line))]
        print("seconds", (time.perf_counter() - start) / len(losses), *losses, flush=True)


if __name__ == "__main__":
    main()
