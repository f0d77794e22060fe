"""TPUs: the grid of their cores, and which cores make up which replica.

`replicax.cluster` finds and initializes a TPU; `replicax.TPUStrategy` trains on it.
"""

from replicax.tpu._assignment import DeviceAssignment
from replicax.tpu._topology import Topology

__all__ = ["DeviceAssignment", "Topology"]
