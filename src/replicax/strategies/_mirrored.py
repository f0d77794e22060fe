"""Synchronous training on the devices of one machine, with a copy of every variable on each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from replicax.collectives import Communicator, CrossDeviceOps, DefaultAllReduce
from replicax.errors import VariableError
from replicax.strategies._answers import Answers
from replicax.strategies._strategy import Strategy
from replicax.topology import REPLICA_AXIS, ReplicaMesh, group_devices, resolve_devices
from replicax.types import Device, VariableSynchronization
from replicax.variables import Layout, OnePerReplica, Partitioned, PartitionRules, Replicated, VariableSpec

__all__ = ["MirroredStrategy", "mirrored_layouts"]


class MirroredStrategy(Strategy):
    """One replica on each device, each with a copy of every variable; the copies are kept equal.

    Args:
        devices: names ("GPU:0", "/cpu:1") or `jax.Device`s. None or an empty list takes all GPUs, or all
            TPUs, or all CPU devices (see `rx.set_cpu_devices`).
        cross_device_ops: how values are combined across devices; None leaves it to XLA.
        logical_devices: the number of devices per replica, its logical devices. Variables with a partition
            are sharded over them, and XLA partitions the computation; see `rx.Variable`.
        partition_rules: partitions for variables by name, for a whole model:
            `{"mlp/in/kernel": [1, 4], "mlp/out/kernel": [4, 1]}`. The keys are regular expressions that are
            searched for in the names of variables.
        axis_name: the name of the replica axis in `jax.lax.pmean(x, axis_name)` and similar functions.

    Raises:
        DeviceError: a device does not exist or is named twice, or platforms are mixed.
        CollectiveError: `cross_device_ops` does not support these devices.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     w = rx.Variable(1.0, aggregation=rx.VariableAggregation.MEAN)
    >>> @rx.function
    ... def step(x):
    ...     return strategy.reduce("MEAN", strategy.run(lambda x: w * x, args=(x,)), axis=0)
    >>> batch = strategy.distribute_values_from_function(lambda ctx: jnp.ones(4))
    >>> step(batch)
    Array(1., dtype=float32)
    """

    def __init__(
        self,
        devices: Sequence[str | Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        *,
        logical_devices: int = 1,
        partition_rules: Mapping[str, Sequence[int]] | None = None,
        axis_name: str = REPLICA_AXIS,
    ) -> None:
        ops = DefaultAllReduce() if cross_device_ops is None else cross_device_ops
        if not isinstance(ops, CrossDeviceOps):
            raise TypeError(
                f"cross_device_ops must be an rx.CrossDeviceOps, got {type(ops).__name__} {ops!r}."
            )
        grid = group_devices(resolve_devices(devices or None), logical_devices)
        communicator = Communicator(ReplicaMesh(grid, axis_name), ops)
        rules = PartitionRules(partition_rules)
        super().__init__(Answers(communicator, mirrored_layouts(communicator), partition_rules=rules))


def mirrored_layouts(
    communicator: Communicator,
) -> Callable[[VariableSpec], tuple[VariableSpec, Layout]]:
    """The `choose_layout` of mirrored strategies: replicated, or one part per replica if ON_READ."""
    replicated, parts = Replicated(communicator), OnePerReplica(communicator)
    partitioned = functools.cache(functools.partial(Partitioned, communicator))

    def choose(spec: VariableSpec) -> tuple[VariableSpec, Layout]:
        spec.check_mean()
        spec = _synchronized(spec)
        on_read = spec.synchronization is VariableSynchronization.ON_READ
        if spec.partition is not None and max(spec.partition, default=1) > 1:
            return spec, partitioned(spec.partition)
        return spec, parts if on_read else replicated

    return choose


def _synchronized(spec: VariableSpec) -> VariableSpec:
    """Replace AUTO with ON_WRITE, which is what it means for mirrored variables."""
    if spec.synchronization is VariableSynchronization.NONE:
        raise VariableError(
            f"The variable '{spec.name}:0' was given synchronization NONE, which a mirrored variable "
            "can't have. Use AUTO, ON_WRITE or ON_READ."
        )
    if spec.synchronization is VariableSynchronization.AUTO:
        return dataclasses.replace(spec, synchronization=VariableSynchronization.ON_WRITE)
    return spec
