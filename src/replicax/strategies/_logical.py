"""Logical devices: saying which devices of its replica a value is for.

A replica may have several devices, its logical devices. Everything that it computes is whole on each of
them, until it says otherwise: an array that is *split* lies in parts on them, and XLA cuts what is computed
from it accordingly, exchanging what the parts need of each other. These are annotations. The numbers are
the same with and without, and on any number of devices; only the place where they are computed changes.
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
from replicax.topology import REPLICA_AXIS, ReplicaMesh
from replicax.values import is_number, map_leaves

if TYPE_CHECKING:
    from replicax.strategies._strategy import StrategyBase

__all__ = ["assign", "on_all_devices", "replicate", "split"]


def assign(strategy: StrategyBase, structure: Any, logical_device_id: Any) -> Any:
    """What `strategy.assign_to_logical_device` does."""
    _require_replica(strategy, "assign_to_logical_device")
    if (reason := strategy.answers.why_not_assignable) is not None:
        raise DeviceError(reason)
    count = strategy.mesh.num_logical_devices
    try:
        number = operator.index(logical_device_id)
    except TypeError:
        number = -1
    if not 0 <= number < count:
        raise DeviceError(
            f"assign_to_logical_device(logical_device_id={logical_device_id!r}): each replica of "
            f"{strategy} has {count} logical device(s), so pass 0 <= id < {count}."
        )
    return _annotate(strategy, structure, lambda _: PartitionSpec(), "assign_to_logical_device")


def replicate(strategy: StrategyBase, structure: Any) -> Any:
    """What `strategy.replicate_to_logical_devices` does."""
    _require_replica(strategy, "replicate_to_logical_devices")
    return _annotate(strategy, structure, lambda _: PartitionSpec(), "replicate_to_logical_devices")


def split(strategy: StrategyBase, structure: Any, partition_dimensions: Any) -> Any:
    """What `strategy.split_to_logical_devices` does."""
    _require_replica(strategy, "split_to_logical_devices")
    partition = _checked_partition(strategy, partition_dimensions)

    def spec(shape: tuple[int, ...]) -> PartitionSpec:
        _check_divisible(shape, partition)
        return strategy.mesh.partition_spec(partition)

    return _annotate(strategy, structure, spec, "split_to_logical_devices")


def on_all_devices(mesh: ReplicaMesh, local_index: int, structure: Any) -> Any:
    """A replica's values, of which those that were put on one of its devices are put on all of them."""

    def placed(leaf: Any) -> Any:
        bound = isinstance(leaf, jax.Array) and not is_tracer(leaf) and leaf.committed
        return mesh.place(leaf, local_index) if bound else leaf

    return map_leaves(placed, structure)


def _require_replica(strategy: StrategyBase, what: str) -> None:
    here = current()
    if here.replica is not None and here.strategy is strategy:
        return
    where = f"a replica function of {here.strategy}" if here.replica else "the cross-replica context"
    raise ContextError(
        f"{what}() of {strategy} was called in {where}. It annotates what one replica computes: call it in "
        "the function that you give to `strategy.run`."
    )


def _checked_partition(strategy: StrategyBase, partition_dimensions: Any) -> tuple[int, ...]:
    count = strategy.mesh.num_logical_devices
    try:
        partition = tuple(operator.index(parts) for parts in partition_dimensions)
    except TypeError:
        partition = (0,)
    if any(parts < 1 for parts in partition):
        raise DeviceError(
            "split_to_logical_devices takes the number of parts for each axis, a list of positive "
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
            f"{shape}. Pass one number for each of its {len(shape)} axes, 1 for those that stay whole."
        )
    for axis, (size, parts) in enumerate(zip(shape, partition, strict=True)):
        if size % parts:
            raise DeviceError(
                f"split_to_logical_devices(partition_dimensions={list(partition)}) can't cut axis {axis} "
                f"of an array of shape {shape} into {parts} equal parts. Pad it, or split another axis."
            )


def _annotate(
    strategy: StrategyBase, structure: Any, spec: Callable[[tuple[int, ...]], PartitionSpec], what: str
) -> Any:
    """`structure` with every array of it laid on the replica's devices as `spec` says of its shape."""
    one = strategy.mesh.num_logical_devices == 1

    def annotated(leaf: Any) -> Any:
        if leaf is None:
            return None
        if not is_number(leaf) and not hasattr(type(leaf), "__jax_array__"):
            raise TypeError(f"{what} takes arrays and structures of arrays, got {leaf!r}.")
        lies = spec(tuple(jnp.shape(leaf)))
        return leaf if one else _laid(strategy, jnp.asarray(leaf), lies)

    return map_leaves(annotated, structure)


def _laid(strategy: StrategyBase, array: Any, spec: PartitionSpec) -> Any:
    mesh = strategy.mesh
    if REPLICA_AXIS in jax.sharding.get_abstract_mesh().manual_axes:
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
