"""`tf.distribute.coordinator`: schedules functions on the workers of a `ParameterServerStrategy`."""

from __future__ import annotations

from replicax.parameter_server import (
    ClusterCoordinator,
    PerWorkerValues,
    RemoteValue,
    get_current_worker_index,
)

__all__ = ["ClusterCoordinator", "PerWorkerValues", "RemoteValue", "get_current_worker_index"]

experimental_get_current_worker_index = get_current_worker_index
PerWorkerValue = PerWorkerValues
