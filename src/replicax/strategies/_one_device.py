"""Everything on one device: a strategy for trying out code that is written for many devices."""

from __future__ import annotations

from replicax.collectives import Communicator, DefaultAllReduce
from replicax.strategies._answers import Answers
from replicax.strategies._strategy import Strategy
from replicax.topology import REPLICA_AXIS, ReplicaMesh, find_device
from replicax.types import Device
from replicax.variables import OneDevice

__all__ = ["OneDeviceStrategy"]


class OneDeviceStrategy(Strategy):
    """One replica on one device; per-replica values are plain arrays.

    Args:
        device: a name ("GPU:0", "/cpu:1") or a `jax.Device`.
        axis_name: the name of the replica axis in `jax.lax.pmean(x, axis_name)` and similar functions.

    >>> strategy = rx.OneDeviceStrategy("CPU:1")
    >>> with strategy.scope():
    ...     v = rx.Variable(1.0)
    >>> strategy.run(lambda: v + 1)
    Array(2., dtype=float32)
    """

    def __init__(self, device: str | Device, *, axis_name: str = REPLICA_AXIS) -> None:
        found = find_device(device)
        communicator = Communicator(ReplicaMesh([found], axis_name), DefaultAllReduce())
        layout = OneDevice(found, communicator.mesh)
        super().__init__(
            Answers(communicator, lambda spec: (spec, layout), parameter_device=found, plain_values=True)
        )
