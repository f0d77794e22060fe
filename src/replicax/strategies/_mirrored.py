"""Synchronous training on the devices of one machine, with a copy of every variable on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from replicax.collectives import Communicator, CrossDeviceOps, DefaultAllReduce
from replicax.errors import VariableError
from replicax.strategies._strategy import Strategy
from replicax.topology import ReplicaMesh, resolve_devices
from replicax.types import Device, VariableSynchronization
from replicax.values import PerReplica
from replicax.variables import MirroredVariable, SyncOnReadVariable, Variable, VariableSpec

__all__ = ["MirroredStrategy", "make_mirrored_variable"]


class MirroredStrategy(Strategy):
    """One replica on each device, and on each a copy of every variable, kept equal.

    Args:
        devices: names ("GPU:0", "/cpu:1") or `jax.Device`s; None takes all GPUs, or all TPUs, or all
            CPU devices (see `rx.set_cpu_devices`).
        cross_device_ops: how values are combined across devices; None leaves it to XLA.

    Raises:
        DeviceError: a device does not exist or is named twice, or platforms are mixed.
        CollectiveError: `cross_device_ops` can't work on these devices.

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
    ) -> None:
        """Choose the devices and how they talk."""
        ops = DefaultAllReduce() if cross_device_ops is None else cross_device_ops
        if not isinstance(ops, CrossDeviceOps):
            raise TypeError(
                f"cross_device_ops must be an rx.CrossDeviceOps, got {type(ops).__name__} {ops!r}."
            )
        self._communicator = Communicator(ReplicaMesh(resolve_devices(devices)), ops)

    @property
    def communicator(self) -> Communicator:
        """How values are combined over the replicas."""
        return self._communicator

    @property
    def parameter_device(self) -> None:
        """None: variables have a copy on every device."""
        return None

    def make_variable(self, spec: VariableSpec, value: jax.Array) -> Variable:
        """A mirrored variable, or a sync-on-read one if `spec` says ON_READ."""
        return make_mirrored_variable(self, spec, value)


def make_mirrored_variable(strategy: Strategy, spec: VariableSpec, value: jax.Array) -> Variable:
    """A variable with a copy on each replica of `strategy`; if `spec` says ON_READ, a part on each."""
    spec.check_mean()
    spec, mesh = _synchronized(spec), strategy.mesh
    if not mesh.is_local:
        value = _of_first_replica(strategy, value)
    if spec.synchronization is not VariableSynchronization.ON_READ:
        return MirroredVariable(spec, strategy, jnp.copy(mesh.replicate(value)))
    parts = [value] * len(mesh.local_replica_ids)
    return SyncOnReadVariable(spec, strategy, jnp.copy(mesh.assemble(parts)))


def _of_first_replica(strategy: Strategy, value: jax.Array) -> jax.Array:
    """The first process's `value`, in all processes."""
    own = PerReplica([value] * len(strategy.mesh.local_replica_ids), mesh=strategy.mesh)
    return strategy.communicator.first([own])[0].to_plain()


def _synchronized(spec: VariableSpec) -> VariableSpec:
    """`spec` with AUTO decided: a mirrored variable is kept equal by every write."""
    if spec.synchronization is VariableSynchronization.NONE:
        raise VariableError(
            f"The variable '{spec.name}:0' was given synchronization NONE, which a mirrored variable "
            "can't have: use AUTO, ON_WRITE or ON_READ."
        )
    if spec.synchronization is VariableSynchronization.AUTO:
        return dataclasses.replace(spec, synchronization=VariableSynchronization.ON_WRITE)
    return spec
