"""The algorithms that combine the replicas' values, for `MirroredStrategy(cross_device_ops=...)`.

`CrossDeviceOps` is the interface, which users may subclass. The implementations below differ only in the
recipe that each replica runs; `_RecipeOps` does the rest.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from replicax._jax import is_tracer
from replicax._messages import brief
from replicax.collectives._local import AllReduce, OneDeviceReduce, Recipe
from replicax.collectives._options import (
    CommunicationImplementation,
    CommunicationOptions,
    merge_options,
)
from replicax.collectives._programs import combine
from replicax.collectives._timeout import await_or_limit
from replicax.errors import ArgumentKindError, CollectiveError
from replicax.topology import ReplicaMesh, device_name, find_device
from replicax.types import ReduceOp, ReduceOpLike
from replicax.values import (
    DistributedValues,
    Mirrored,
    PerReplica,
    is_array,
    is_number,
)

__all__ = [
    "CrossDeviceOps",
    "DefaultAllReduce",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "ReductionToOneDevice",
    "broadcast",
    "deliver",
    "place",
]

Pairs = Sequence[tuple[Any, Any]]


class CrossDeviceOps:
    """Combines values across the devices of a `MirroredStrategy`; subclass it for your own algorithm.

    Override `reduce_implementation`, `batch_reduce_implementation` and, if needed,
    `broadcast_implementation`. They are called in eager and in compiled code. They get `PerReplica` values,
    whose `values` are the replicas' parts, and return a `Mirrored` or one array for all replicas.

    >>> class Loudest(rx.CrossDeviceOps):
    ...     def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
    ...         return jnp.stack(per_replica_value.values).max(axis=0)
    ...     def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
    ...         return [self.reduce_implementation(reduce_op, value, where, options)
    ...                 for value, where in value_destination_pairs]
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=Loudest())
    >>> x = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group * 5.0)
    >>> strategy.reduce("SUM", x, axis=None)
    Array(5., dtype=float32)
    """

    def reduce(
        self,
        reduce_op: ReduceOpLike,
        per_replica_value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Reduce one value to `destinations`.

        Args:
            reduce_op: "SUM" or "MEAN".
            per_replica_value: the value to combine. A single array or number is copied to the
                destinations.
            destinations: a device, or a variable or distributed value: then the result is mirrored on its
                devices.
            options: a `CommunicationOptions`.
        """
        op, options = ReduceOp.parse(reduce_op), merge_options(options, None)
        if is_number(per_replica_value):
            return self.broadcast(per_replica_value, destinations)
        return self.reduce_implementation(op, _parts(per_replica_value), destinations, options)

    def batch_reduce(
        self,
        reduce_op: ReduceOpLike,
        value_destination_pairs: Pairs,
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduce many values at once; returns one result for each (value, destinations) pair."""
        op, options = ReduceOp.parse(reduce_op), merge_options(options, None)
        single = [is_number(value) for value, _ in value_destination_pairs]
        pairs = [(value, where) for value, where in value_destination_pairs if not is_number(value)]
        parts = [(_parts(value), where) for value, where in pairs]
        reduced = iter(self.batch_reduce_implementation(op, parts, options) if parts else ())
        return [
            self.broadcast(value, where) if alone else next(reduced)
            for alone, (value, where) in zip(single, value_destination_pairs, strict=True)
        ]

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Copy `tensor` to all devices of `destinations`."""
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: PerReplica,
        destinations: Any,
        options: CommunicationOptions,
    ) -> Any:
        """Implements `reduce`, with checked arguments. Override it."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define `reduce_implementation(reduce_op, "
            "per_replica_value, destinations, options)`."
        )

    def batch_reduce_implementation(
        self, reduce_op: ReduceOp, value_destination_pairs: Pairs, options: CommunicationOptions
    ) -> list[Any]:
        """Implements `batch_reduce`, with checked arguments. Override it."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define `batch_reduce_implementation(reduce_op, "
            "value_destination_pairs, options)`."
        )

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """Implements `broadcast`: by default, copies to every device of `destinations`."""
        return broadcast(tensor, destinations)

    def check_devices(self, mesh: ReplicaMesh) -> None:
        """Raise if these operations can't run on `mesh`; called by the constructor of a strategy."""

    def reduce_equal(self, reduce_op: ReduceOp, value: Any, num_replicas: int) -> Any:
        """Combine an array or number that is the same on all replicas, which needs no communication.

        By default that is `num_replicas` times the value, or the value itself for MEAN. Override it if your
        algorithm does not compute a sum.
        """
        return _as_mean(value) if reduce_op is ReduceOp.MEAN else value * num_replicas


def _as_mean(value: Any) -> Any:
    """The mean of a value that is the same on all replicas: integers become float32."""
    number = isinstance(value, bool | int | float | complex)
    return value if number or jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(jnp.float32)


def _parts(value: Any) -> PerReplica:
    """What each replica contributes; its copy, if the value is mirrored."""
    if isinstance(value, Mirrored) and value.mesh is not None:
        return PerReplica(value.values, mesh=value.mesh)
    if not isinstance(value, PerReplica):
        raise CollectiveError(
            f"Expected a PerReplica value, as `strategy.run` returns, or one array, got {brief(value)}."
        )
    return value


def deliver(result: Mirrored, destinations: Any) -> Any:
    """Place `result` on `destinations`: mirrored for a distributed value, else on one device."""
    if isinstance(destinations, DistributedValues):
        return result
    device = _device_of(destinations)
    whole = result.to_plain()
    return whole if device is None or is_tracer(whole) else jax.device_put(whole, device)


def place(value: Any, destinations: Any) -> Any:
    """Place a reduced value on `destinations`; mirrored and traced values are returned unchanged."""
    if isinstance(value, Mirrored) or isinstance(destinations, DistributedValues):
        return value
    device = _device_of(destinations)
    return (
        value
        if device is None or not is_array(value) or is_tracer(value)
        else jax.device_put(value, device)
    )


def _device_of(destinations: Any) -> Any:
    """The device of a destination; None for traced values and NumPy arrays."""
    if isinstance(destinations, str | jax.Device):
        return find_device(destinations)
    if isinstance(destinations, list | tuple) or destinations is None:
        raise ArgumentKindError(
            f"destinations must be a variable, a distributed value, an array or one device, got "
            f"{brief(destinations)}. To mirror the result on all devices, pass the value itself."
        )
    device = None if is_tracer(destinations) else getattr(destinations, "device", None)
    return device if isinstance(device, jax.Device) else None


def broadcast(tensor: Any, destinations: Any) -> Any:
    """Copy `tensor` to the devices of `destinations`."""
    mesh = destinations.mesh if isinstance(destinations, DistributedValues) else None
    if mesh is None:
        return deliver(Mirrored.from_whole(jnp.asarray(tensor)), destinations)
    whole = tensor if is_tracer(tensor) else mesh.replicate(tensor)
    return Mirrored.from_whole(whole, mesh)


class _RecipeOps(CrossDeviceOps, abc.ABC):
    """Operations defined by the recipe that each replica runs."""

    @abc.abstractmethod
    def _recipe(self, op: ReduceOp, options: CommunicationOptions, mesh: ReplicaMesh) -> Recipe:
        """What each replica computes."""

    @final
    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: PerReplica,
        destinations: Any,
        options: CommunicationOptions,
    ) -> Any:
        """Reduce one value."""
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    @final
    def batch_reduce_implementation(
        self, reduce_op: ReduceOp, value_destination_pairs: Pairs, options: CommunicationOptions
    ) -> list[Any]:
        """Reduce all values in one program."""
        if not value_destination_pairs:
            return []
        values = [value for value, _ in value_destination_pairs]
        mesh = values[0].mesh
        if mesh is None:
            raise CollectiveError(
                "These PerReplica values do not belong to a strategy. Create them with "
                "`strategy.distribute_values_from_function`, or reduce them with `strategy.reduce`."
            )
        _refuse_missing_nccl(options, mesh)
        _refuse_booleans(values)
        reduced = combine(self._recipe(reduce_op, options, mesh), values, mesh)
        await_or_limit(reduced, options, "A reduction across replicas")
        pairs = zip(reduced, value_destination_pairs, strict=True)
        return [deliver(result, destinations) for result, (_, destinations) in pairs]


def _refuse_missing_nccl(options: CommunicationOptions, mesh: ReplicaMesh) -> None:
    if options.implementation is CommunicationImplementation.NCCL and mesh.platform != "gpu":
        raise CollectiveError(
            f"CommunicationOptions(implementation=NCCL) needs GPUs, but the replicas run on {mesh}. "
            "Use AUTO (XLA's own collectives) or RING."
        )


def _refuse_booleans(values: Sequence[PerReplica]) -> None:
    for value in values:
        uniform = value.uniform
        if uniform is not None and uniform.dtype == jnp.bool_:
            raise CollectiveError(
                "Booleans can't be summed or averaged across replicas. Convert them to numbers first, for "
                "example `value.astype(jnp.int32)`."
            )


@final
class DefaultAllReduce(_RecipeOps):
    """XLA's all-reduce, with small values packed together. The default of all strategies."""

    def _recipe(self, op: ReduceOp, options: CommunicationOptions, mesh: ReplicaMesh) -> Recipe:
        return AllReduce(op, mesh.platform, options)


@final
class ReductionToOneDevice(_RecipeOps):
    """Copies all values to one device, accumulates them there and copies the result back.

    Args:
        reduce_to_device: the strategy's device that accumulates; by default the first replica's.
        accumulation_fn: combines the list of the replicas' values, in replica order; None adds them.

    >>> ops = rx.ReductionToOneDevice(accumulation_fn=lambda parts: jnp.maximum(*parts))
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
    >>> x = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1.0)
    >>> strategy.reduce("SUM", x, axis=None)
    Array(2., dtype=float32)
    """

    def __init__(
        self,
        reduce_to_device: Any = None,
        accumulation_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        self._device = None if reduce_to_device is None else find_device(reduce_to_device)
        self._accumulate = accumulation_fn

    def reduce_equal(self, reduce_op: ReduceOp, value: Any, num_replicas: int) -> Any:
        """Combine equal values with `accumulation_fn` too."""
        if self._accumulate is None:
            return super().reduce_equal(reduce_op, value, num_replicas)
        return OneDeviceReduce(reduce_op, 0, self._accumulate).of_equal(value, num_replicas)

    def check_devices(self, mesh: ReplicaMesh) -> None:
        """Refuse a device that does not belong to a replica."""
        self._replica(mesh)

    def _replica(self, mesh: ReplicaMesh) -> int:
        if self._device is None:
            return 0
        for replica, devices in enumerate(mesh.replica_devices):
            if self._device in devices:
                return replica
        raise CollectiveError(
            f"ReductionToOneDevice(reduce_to_device={device_name(self._device)!r}) names a device that no "
            f"replica uses: the replicas run on {mesh}. Choose one of their devices."
        )

    def _recipe(self, op: ReduceOp, options: CommunicationOptions, mesh: ReplicaMesh) -> Recipe:
        _refuse_other_algorithm("ReductionToOneDevice", options)
        if options.bytes_per_pack:
            raise CollectiveError(
                f"CommunicationOptions(bytes_per_pack={options.bytes_per_pack}) does not apply to "
                "ReductionToOneDevice, which copies each value separately. Leave it out, or use the "
                "strategy's default cross_device_ops."
            )
        return OneDeviceReduce(op, self._replica(mesh), self._accumulate)


@final
class NcclAllReduce(_RecipeOps):
    """NVIDIA's NCCL, which XLA uses on GPUs anyway; refused on other devices.

    Args:
        num_packs: the number of packs to reduce; 0 reduces each value separately.

    >>> rx.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=rx.NcclAllReduce())
    Traceback (most recent call last):
        ...
    replicax.errors.CollectiveError: NcclAllReduce needs GPUs, but the replicas run on ...
    """

    def __init__(self, num_packs: int = 1) -> None:
        self._num_packs = _checked_packs("NcclAllReduce", num_packs)

    def check_devices(self, mesh: ReplicaMesh) -> None:
        """Refuse devices other than GPUs."""
        if mesh.platform != "gpu":
            raise CollectiveError(
                f"NcclAllReduce needs GPUs, but the replicas run on {mesh}. Leave out cross_device_ops, "
                "or use HierarchicalCopyAllReduce or ReductionToOneDevice."
            )

    def _recipe(self, op: ReduceOp, options: CommunicationOptions, mesh: ReplicaMesh) -> Recipe:
        return AllReduce(op, mesh.platform, options, num_packs=self._num_packs)


@final
class HierarchicalCopyAllReduce(_RecipeOps):
    """Reduces within groups of devices first, then across the groups.

    It can be faster if devices are connected in groups. With a prime number of replicas it is a plain
    all-reduce.

    Args:
        num_packs: the number of packs to reduce; 0 reduces each value separately.

    >>> devices = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    >>> strategy = rx.MirroredStrategy(devices, rx.HierarchicalCopyAllReduce())
    >>> x = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1)
    >>> strategy.reduce("SUM", x, axis=None)
    Array(10, dtype=int32)
    """

    def __init__(self, num_packs: int = 1) -> None:
        self._num_packs = _checked_packs("HierarchicalCopyAllReduce", num_packs)

    def _recipe(self, op: ReduceOp, options: CommunicationOptions, mesh: ReplicaMesh) -> Recipe:
        _refuse_other_algorithm("HierarchicalCopyAllReduce", options)
        return AllReduce(op, mesh.platform, options, hierarchical=True, num_packs=self._num_packs)


def _refuse_other_algorithm(name: str, options: CommunicationOptions) -> None:
    if options.implementation is not CommunicationImplementation.AUTO:
        raise CollectiveError(
            f"CommunicationOptions(implementation={options.implementation.name}) contradicts the "
            f"strategy's cross_device_ops, {name}. Leave out one of them."
        )


def _checked_packs(name: str, num_packs: int) -> int:
    if num_packs < 0:
        raise ValueError(f"{name}(num_packs={num_packs}): pass 0 (no packing) or more.")
    return num_packs
