"""Keras' part of `training.py`, in a process of its own: `DataParallel` on two CPU devices, with JAX.

Reads a number of steps from each line of standard input and answers with the seconds per step and the
losses of `model.fit`. The model is one Keras model with the weights and the arithmetic of `training.py`;
dividing the batch, differentiating and updating is Keras' work.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import training
import training_work as work

import replicax as rx

MOST_LOSSES = 3


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


def compiled_model(workload: work.Workload) -> Losses:
    model = Losses(workload)
    adam = keras.optimizers.Adam(work.LEARNING_RATE, work.BETA_1, work.BETA_2, work.EPSILON)
    model.compile(optimizer=adam, loss=lambda _, losses: losses)
    return model


class Fit:
    """Steps of `model.fit` on the same batch."""

    def __init__(self, workload: work.Workload) -> None:
        self._model, self._size = compiled_model(workload), workload.batch_size
        self._batch = workload.batch()
        self._data: dict[int, Any] = {}

    def __call__(self, num_steps: int) -> tuple[float, list[float]]:
        """The seconds of a step; and the losses of few steps, each of which is then an epoch."""
        num_epochs = num_steps if num_steps <= MOST_LOSSES else 1
        inputs, targets = self._repeated(num_steps // num_epochs)
        start = time.perf_counter()
        history = self._model.fit(
            inputs, targets, batch_size=self._size, epochs=num_epochs, shuffle=False, verbose=0
        )
        return (time.perf_counter() - start) / num_steps, history.history["loss"]

    def _repeated(self, count: int) -> Any:
        if count not in self._data:
            parts = tuple(np.concatenate([array] * count) for array in self._batch)
            self._data[count] = (parts, np.zeros(len(parts[0]), np.float32))
        return self._data[count]


def read_workload() -> work.Workload:
    return work.WORKLOADS[str(np.load(sys.argv[1])["workload"])]


def main() -> None:
    rx.set_cpu_devices(2)  # and enough threads: Keras queues steps, which else wait for each other
    devices = keras.distribution.list_devices("cpu")
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    fit = Fit(read_workload())
    for line in sys.stdin:
        seconds, losses = fit(int(line))
        print("seconds", seconds, *losses, flush=True)


if __name__ == "__main__":
    main()
