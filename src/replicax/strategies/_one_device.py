"""Everything on one device: a strategy for trying code that is written for many."""

from __future__ import annotations

from typing import Any

import jax

from replicax.collectives import Communicator, DefaultAllReduce
from replicax.strategies._strategy import Strategy
from replicax.topology import ReplicaMesh, find_device
from replicax.types import Device
from replicax.variables import PlainVariable, Variable, VariableSpec

__all__ = ["OneDeviceStrategy"]


class OneDeviceStrategy(Strategy):
    """One replica on a device that you name; values and variables are plain.

    Args:
        device: a name ("GPU:0", "/cpu:1") or a `jax.Device`.

    >>> strategy = rx.OneDeviceStrategy("CPU:1")
    >>> with strategy.scope():
    ...     v = rx.Variable(1.0)
    >>> strategy.run(lambda: v + 1)
    Array(2., dtype=float32)
    """

    def __init__(self, device: str | Device) -> None:
        """Choose the device."""
        self._communicator = Communicator(ReplicaMesh([find_device(device)]), DefaultAllReduce())

    @property
    def communicator(self) -> Communicator:
        """How values are combined over the replicas: there is one."""
        return self._communicator

    @property
    def parameter_device(self) -> Any:
        """The device."""
        return self.mesh.local_devices[0]

    def make_variable(self, spec: VariableSpec, value: jax.Array) -> Variable:
        """A plain variable on the device."""
        return PlainVariable(spec, self, jax.numpy.copy(self.mesh.place(value, 0)))

    def _distribute(self, values: list[Any]) -> Any:
        return values[0]
