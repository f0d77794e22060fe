"""Flax NNX's part of `training.py`, in a process of its own: `nnx.jit` on two CPU devices.

Reads a number of steps from each line of standard input and answers with the seconds per step and the
losses. The model has the weights and the arithmetic of `training.py`. It is replicated, the batch is
divided, and XLA partitions the step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import training
import training_work as work
from by_hand import ROWS, WHOLE, two_devices
from flax import nnx
from jax.sharding import NamedSharding

import replicax as rx


class Losses(nnx.Module):
    """From a batch to the loss of each example."""

    def __init__(self, workload: work.Workload) -> None:
        self.losses_of = training.LOSSES[workload.model]
        self.names = tuple(workload.parameters())
        self.arrays = nnx.List([nnx.Param(jnp.asarray(a)) for a in workload.parameters().values()])

    def __call__(self, inputs: Any, targets: Any) -> Any:
        parameters = {name: array[...] for name, array in zip(self.names, self.arrays, strict=True)}
        return self.losses_of(parameters, inputs, targets)


def make_step(workload: work.Workload) -> Callable[[], Any]:
    mesh = two_devices()
    model = Losses(workload)
    optimizer = nnx.Optimizer(model, training.adam(), wrt=nnx.Param)
    for part in (model, optimizer):
        nnx.update(part, jax.device_put(nnx.state(part), NamedSharding(mesh, WHOLE)))
    batch = [jax.device_put(array, NamedSharding(mesh, ROWS)) for array in workload.batch()]

    @nnx.jit
    def step(model: Any, optimizer: Any, *batch: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean(model(*batch)))(model)
        optimizer.update(model, gradients)
        return loss

    return lambda: step(model, optimizer, *batch)


def main() -> None:
    rx.set_cpu_devices(2)
    step = make_step(work.WORKLOADS[str(np.load(sys.argv[1])["workload"])])
    for line in sys.stdin:
        start = time.perf_counter()
        losses = jax.block_until_ready([step() for _ in range(int(line))])
        seconds = (time.perf_counter() - start) / len(losses)
        print("seconds", seconds, *map(float, losses), flush=True)


if __name__ == "__main__":
    main()
