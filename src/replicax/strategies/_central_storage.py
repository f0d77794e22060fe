"""Variables on one device, computation on many."""

from __future__ import annotations

from collections.abc import Sequence

from replicax.collectives import Communicator, DefaultAllReduce
from replicax.strategies._answers import Answers
from replicax.strategies._strategy import Strategy
from replicax.topology import REPLICA_AXIS, ReplicaMesh, find_device, resolve_devices
from replicax.types import Device
from replicax.variables import Central, Layout, VariableSpec

__all__ = ["CentralStorageStrategy"]


class CentralStorageStrategy(Strategy):
    """One replica on each compute device; every variable has one copy, on the parameter device.

    Replicas fetch the variables for each step, and their writes are combined before they are stored. That
    saves the memory of the copies, at the cost of transferring the values.

    Args:
        compute_devices: the devices that compute; by default all GPUs or TPUs, or the first CPU device.
        parameter_device: the device of the variables; by default the first CPU device, or the compute
            device if there is only one.
        axis_name: the name of the replica axis in `jax.lax.pmean(x, axis_name)` and similar functions.

    >>> strategy = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], parameter_device="CPU:0")
    >>> with strategy.scope():
    ...     v = rx.Variable(1.0)
    >>> strategy.extended.parameter_devices
    ('CPU:0',)
    >>> strategy.reduce("SUM", strategy.run(lambda: v + 1), axis=None)
    Array(4., dtype=float32)
    """

    def __init__(
        self,
        compute_devices: Sequence[str | Device] | None = None,
        parameter_device: str | Device | None = None,
        *,
        axis_name: str = REPLICA_AXIS,
    ) -> None:
        devices = resolve_devices(compute_devices)
        if compute_devices is None and devices[0].platform == "cpu":
            devices = devices[:1]
        if parameter_device is None:
            parameter_device = devices[0] if len(devices) == 1 else "CPU:0"
        device = find_device(parameter_device)
        communicator = Communicator(ReplicaMesh(devices, axis_name), DefaultAllReduce())
        central = Central(communicator, device)

        def choose_layout(spec: VariableSpec) -> tuple[VariableSpec, Layout]:
            spec.check_mean()
            return spec, central

        super().__init__(Answers(communicator, choose_layout, parameter_device=device))
