"""`tf.tpu.experimental`: how replicas are assigned to the cores of a TPU."""

from replicax.cluster import initialize_tpu_system, shutdown_tpu_system
from replicax.tf._missing import refuse
from replicax.tpu import DeviceAssignment, Topology

__all__ = ["DeviceAssignment", "Topology", "initialize_tpu_system", "shutdown_tpu_system"]

__getattr__ = refuse("tf.tpu.experimental", {"embedding": "`jax.numpy.take` on a variable"})
