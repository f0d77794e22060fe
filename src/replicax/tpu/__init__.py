"""TPUs: the grid of their cores, and which cores make up which replica.

Finding and initializing a TPU is in `replicax.cluster`, training on it in `replicax.TPUStrategy`.
"""

from replicax.tpu._assignment import DeviceAssignment
from replicax.tpu._topology import Topology

__all__ = ["DeviceAssignment", "Topology"]
