"""How batches are placed on the devices of a strategy.

XLA partitions Keras' own single-device training step over the global batch. The rows are split over the
devices, and XLA adds the communication that gradients, batch normalization and metrics need. A batch that
does not divide evenly is replicated: every device computes all of it, with the same numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from replicax.integrations.keras._run import running
from replicax.topology import ReplicaMesh

__all__ = ["StrategyLayout"]


class StrategyLayout(keras.distribution.DataParallel):
    """A strategy as a Keras distribution, for the duration of `fit`, `evaluate` or `predict`."""

    def __init__(self, mesh: ReplicaMesh, *, split: bool) -> None:
        """Use all devices of `mesh`, including logical devices. `split=False` replicates batches."""
        devices = list(mesh.mesh.devices.flat)
        grid = keras.distribution.DeviceMesh((len(devices),), [mesh.axis_name], devices)
        super().__init__(device_mesh=grid, auto_shard_dataset=False)
        self.mesh = self._mesh = mesh
        self.replicated = self._split = mesh.replicated
        if split and len(devices) > 1:
            self._split = NamedSharding(mesh.mesh, PartitionSpec(mesh.mesh.axis_names))

    def sharding(self, shape: tuple[int, ...]) -> Sharding:
        """The sharding of an array of a batch: by rows if they divide evenly, otherwise replicated."""
        even = bool(shape) and shape[0] % self._mesh.mesh.size == 0
        return self._split if even else self._mesh.replicated

    def place(self, value: Any) -> Any:
        """Place an array of a batch on the devices. Every process passes the whole batch."""
        if value is None:
            return None
        if self._mesh.must_wait:
            run = running.get()
            jax.block_until_ready(None if run is None else run.results)
        array = value if isinstance(value, np.ndarray | jax.Array) else np.asarray(value)
        sharding = self.sharding(array.shape)
        if self._mesh.is_local:
            return jax.device_put(array, sharding)
        rows = np.asarray(array)
        return jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])
