"""Logical devices: how a value is placed on the devices of its replica.

A replica may have several devices, its logical devices. By default, what it computes is replicated on all
of them. If the replica function *splits* an array, the array is sharded over them, and XLA partitions what
is computed from it and inserts the communication. These are annotations: they change where values are
computed, not the values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from replicax._jax import is_tracer
from replicax.contexts import current, get_replica_context
from replicax.errors import ContextError, DeviceError
from replicax.strategies._signatures import T
from replicax.topology import ReplicaMesh
from replicax.values import is_number, map_leaves

if TYPE_CHECKING:
    from replicax.strategies._strategy import StrategyBase

__all__ = [
    "assign_to_logical_device",
    "on_all_devices",
    "replicate_to_logical_devices",
    "split_to_logical_devices",
]


def assign_to_logical_device(self: StrategyBase, tensor: T, logical_device_id: int) -> T:
    """Choose one of the replica's devices for a value; call it in a replica function.

    The value does not change. XLA can't pin an operation to one device of a partitioned program, so the
    value is replicated on *all* devices of the replica, including this one: each computes it, and none
    waits for another. That saves neither memory nor time; to spread work over the devices, use
    `split_to_logical_devices`.

    Args:
        tensor: an array, or a structure of arrays.
        logical_device_id: the index of the device, from 0. Replicas of most strategies have only one.

    Returns:
        The same value.

    Raises:
        ContextError: outside of a replica function.
        DeviceError: the replica has no such device. It is a `ValueError`.

    >>> topology = rx.Topology()
    >>> assignment = rx.DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=4)
    >>> strategy = rx.TPUStrategy(experimental_device_assignment=assignment)
    >>> def replica_fn(x):
    ...     return strategy.assign_to_logical_device(x + x, 1)
    >>> strategy.local_results(strategy.run(replica_fn, args=(jnp.float32(2),)))[0]
    Array(4., dtype=float32)
    """
    _require_replica(self, "assign_to_logical_device")
    if (reason := self.answers.why_not_assignable) is not None:
        raise DeviceError(reason)
    count = self.mesh.num_logical_devices
    try:
        number = operator.index(logical_device_id)
    except TypeError:
        number = -1
    if not 0 <= number < count:
        raise DeviceError(
            f"assign_to_logical_device(logical_device_id={logical_device_id!r}): each replica of "
            f"{self} has {count} logical device(s), so pass 0 <= id < {count}."
        )
    return _annotate(self, tensor, lambda _: PartitionSpec(), "assign_to_logical_device")


def replicate_to_logical_devices(self: StrategyBase, tensor: T) -> T:
    """Replicate a value on all devices of the replica; call it in a replica function.

    The value does not change. Values that were not split are replicated anyway; use this to end a split,
    for example before a loss that needs the full value on each device.

    Args:
        tensor: an array, or a structure of arrays.

    Returns:
        The same value.

    Raises:
        ContextError: outside of a replica function.

    >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=4)
    >>> strategy = rx.TPUStrategy(experimental_device_assignment=assignment)
    >>> def replica_fn(x):
    ...     x = strategy.split_to_logical_devices(x, [1, 2])
    ...     return strategy.replicate_to_logical_devices({"logits": x * 2})
    >>> strategy.local_results(strategy.run(replica_fn, args=(jnp.ones((2, 2)),)))[0]
    {'logits': Array([[2., 2.],
           [2., 2.]], dtype=float32)}
    """
    _require_replica(self, "replicate_to_logical_devices")
    return _annotate(self, tensor, lambda _: PartitionSpec(), "replicate_to_logical_devices")


def split_to_logical_devices(self: StrategyBase, tensor: T, partition_dimensions: Sequence[int]) -> T:
    """Shard an array over the replica's devices; call it in a replica function.

    The value does not change. Each device holds a part, and XLA partitions what is computed from it: a
    convolution over images that are split in height and width runs on all devices, each with its tile.

    Args:
        tensor: an array, or a structure of arrays that are all split in the same way.
        partition_dimensions: the number of parts along each axis. Each number must divide the size of its
            axis, and their product must be the number of the replica's devices.

    Returns:
        The same value.

    Raises:
        ContextError: outside of a replica function.
        DeviceError: the numbers do not match the array or the devices. It is a `ValueError`.

    >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 2, 2, 2], num_replicas=1)
    >>> strategy = rx.TPUStrategy(experimental_device_assignment=assignment)
    >>> def replica_fn(images):
    ...     images = strategy.split_to_logical_devices(images, [1, 2, 4, 1])
    ...     return images.addressable_shards[0].data.shape, jnp.sum(images)
    >>> strategy.run(replica_fn, args=(jnp.ones((16, 8, 8, 3)),))
    ((16, 4, 2, 3), Array(3072., dtype=float32))
    """
    _require_replica(self, "split_to_logical_devices")
    partition = _checked_partition(self, partition_dimensions)

    def spec(shape: tuple[int, ...]) -> PartitionSpec:
        _check_divisible(shape, partition)
        return self.mesh.partition_spec(partition)

    return _annotate(self, tensor, spec, "split_to_logical_devices")


def on_all_devices(mesh: ReplicaMesh, local_index: int, structure: Any) -> Any:
    """Replicate arrays that are committed to one device on all devices of their replica."""

    def placed(leaf: Any) -> Any:
        committed = isinstance(leaf, jax.Array) and not is_tracer(leaf) and leaf.committed
        return mesh.place(leaf, local_index) if committed else leaf

    return map_leaves(placed, structure)


def _require_replica(strategy: StrategyBase, what: str) -> None:
    here = current()
    if here.replica is not None and here.strategy is strategy:
        return
    where = f"a replica function of {here.strategy}" if here.replica else "the cross-replica context"
    raise ContextError(
        f"{what}() of {strategy} was called in {where}. It annotates what one replica computes: call it in "
        "the function that you pass to `strategy.run`."
    )


def _checked_partition(strategy: StrategyBase, partition_dimensions: Any) -> tuple[int, ...]:
    count = strategy.mesh.num_logical_devices
    try:
        partition = tuple(operator.index(parts) for parts in partition_dimensions)
    except TypeError:
        partition = (0,)
    if any(parts < 1 for parts in partition):
        raise DeviceError(
            "split_to_logical_devices takes the number of parts along each axis as a list of positive "
            f"integers; got {partition_dimensions!r}."
        )
    if math.prod(partition) != count:
        raise DeviceError(
            f"split_to_logical_devices(partition_dimensions={list(partition)}) makes "
            f"{math.prod(partition)} parts, but each replica of {strategy} has {count} logical device(s). "
            f"The product of the numbers must be {count}."
        )
    return partition


def _check_divisible(shape: tuple[int, ...], partition: Sequence[int]) -> None:
    if len(shape) != len(partition):
        raise DeviceError(
            f"split_to_logical_devices(partition_dimensions={list(partition)}) got an array of shape "
            f"{shape}. Pass one number for each of its {len(shape)} axes, 1 for axes that are not split."
        )
    for axis, (size, parts) in enumerate(zip(shape, partition, strict=True)):
        if size % parts:
            raise DeviceError(
                f"split_to_logical_devices(partition_dimensions={list(partition)}) can't split axis {axis} "
                f"of an array of shape {shape} into {parts} equal parts. Pad it, or split another axis."
            )


def _annotate(
    strategy: StrategyBase, structure: Any, spec: Callable[[tuple[int, ...]], PartitionSpec], what: str
) -> Any:
    """Place every array of `structure` on the replica's devices, sharded by `spec` of its shape."""
    one = strategy.mesh.num_logical_devices == 1

    def annotated(leaf: Any) -> Any:
        if leaf is None:
            return None
        if not is_number(leaf) and not hasattr(type(leaf), "__jax_array__"):
            raise TypeError(f"{what} takes arrays and structures of arrays, got {leaf!r}.")
        partition = spec(tuple(jnp.shape(leaf)))
        return leaf if one else _place(strategy, jnp.asarray(leaf), partition)

    return map_leaves(annotated, structure)


def _place(strategy: StrategyBase, array: Any, spec: PartitionSpec) -> Any:
    mesh = strategy.mesh
    if mesh.axis_name in jax.sharding.get_abstract_mesh().manual_axes:
        return jax.lax.with_sharding_constraint(array, spec)
    replica = get_replica_context()
    own = mesh.replica_shardings[replica.local_index] if replica._is_eager else mesh.replicated
    assert isinstance(own, NamedSharding)
    sharding = NamedSharding(own.mesh, spec)
    return (
        jax.lax.with_sharding_constraint(array, sharding)
        if is_tracer(array)
        else jax.device_put(array, sharding)
    )
