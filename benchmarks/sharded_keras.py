"""Keras' part of `sharded.py`, in a process of its own: `ModelParallel` on two CPU devices, with JAX.

Answers as `training_keras.py` does, whose model it divides, with steps of `train_on_batch`.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import sharded_by_hand as by_hand
import training_work as work
from training_keras import compiled_model, keras_name, read_workload

import replicax as rx


def layout_map(workload: work.Workload, mesh: keras.distribution.DeviceMesh) -> Any:
    """Divide the variables that the other sides divide."""
    found = keras.distribution.LayoutMap(mesh)
    for name, array in workload.parameters().items():
        axes = [None if axis is None else "batch" for axis in by_hand.spec_of(array, 2)]
        found[f".*{re.escape(keras_name(name))}$"] = tuple(axes + [None] * (array.ndim - len(axes)))
    return found


def main() -> None:
    rx.set_cpu_devices(2)
    workload = read_workload()
    mesh = keras.distribution.DeviceMesh((2,), ("batch",), keras.distribution.list_devices("cpu"))
    distribution = keras.distribution.ModelParallel(
        layout_map=layout_map(workload, mesh), batch_dim_name="batch"
    )
    keras.distribution.set_distribution(distribution)
    model = compiled_model(workload)
    batch = workload.batch()
    nothing = np.zeros(workload.batch_size, np.float32)
    for line in sys.stdin:
        start = time.perf_counter()
        losses = [float(model.train_on_batch(batch, nothing)) for _ in range(int(line))]
        print("seconds", (time.perf_counter() - start) / len(losses), *losses, flush=True)


if __name__ == "__main__":
    main()
