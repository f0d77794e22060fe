"""How batches lie on the devices of a strategy.

XLA's partitioner runs Keras' training step as the program for one device that it is, over the whole batch.
A batch is split over the devices, row by row, and XLA adds the communication that the program needs: for
sums of gradients, for the statistics of batch normalization, for metrics. A batch that can't be split
evenly is on every device as a whole: the same program, and the same numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax.integrations.keras._run import running
from replicax.topology import REPLICA_AXIS, ReplicaMesh

__all__ = ["StrategyLayout"]


class StrategyLayout(keras.distribution.DataParallel):
    """What Keras is told about a strategy while a model runs."""

    def __init__(self, mesh: ReplicaMesh, *, split: bool) -> None:
        """On all devices of `mesh`, also where a replica has several; whether batches are split at all."""
        devices = list(mesh.mesh.devices.flat)
        grid = keras.distribution.DeviceMesh((len(devices),), [REPLICA_AXIS], devices)
        super().__init__(device_mesh=grid, auto_shard_dataset=False)
        self._mesh = mesh
        self.replicated = self._split = mesh.replicated
        if split and len(devices) > 1:
            self._split = NamedSharding(mesh.mesh, PartitionSpec(mesh.mesh.axis_names))

    def place(self, value: Any) -> Any:
        """An array of a batch on the devices. Every process has the whole batch."""
        if value is None:
            return None
        if self._mesh.must_wait:
            run = running.get()
            jax.block_until_ready(None if run is None else run.results)
        array = value if isinstance(value, np.ndarray | jax.Array) else np.asarray(value)
        even = array.ndim > 0 and array.shape[0] % self._mesh.mesh.size == 0
        sharding = self._split if even else self._mesh.replicated
        if self._mesh.is_local:
            return jax.device_put(array, sharding)
        rows = np.asarray(array)
        return jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])
