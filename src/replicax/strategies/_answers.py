"""What distinguishes one strategy from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, final, get_args

from replicax.cluster import ClusterResolver
from replicax.collectives import Communicator
from replicax.variables import NO_RULES, Layout, PartitionRules, Servers, Sharded, VariableSpec

__all__ = ["MIN_SHARD_BYTES", "Answers", "ShardOptions", "ShardSetting"]

ShardSetting = Literal["mirrored", "optimizer", "all"]
MIN_SHARD_BYTES = 64 * 1024


@final
@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """What a strategy shards over its replicas.

    Args:
        shard: nothing, optimizer slots, or all variables.
        min_bytes: variables smaller than this are not sharded.
        gather_again: whether parameters are gathered again in the backward pass.
    """

    shard: ShardSetting = "mirrored"
    min_bytes: int = MIN_SHARD_BYTES
    gather_again: bool = True

    def __post_init__(self) -> None:
        if self.shard not in get_args(ShardSetting):
            raise ValueError(f"shard={self.shard!r}: pass 'optimizer' or 'all'.")
        if isinstance(self.min_bytes, bool) or not isinstance(self.min_bytes, int) or self.min_bytes < 0:
            raise ValueError(
                f"min_shard_bytes={self.min_bytes!r}: pass a number of bytes, 0 or more; smaller variables "
                "are replicated."
            )
        if not isinstance(self.gather_again, bool):
            raise TypeError(f"gather_again={self.gather_again!r}: pass True or False.")


@final
@dataclasses.dataclass(frozen=True)
class Answers:
    """What distinguishes one strategy from another.

    Args:
        communicator: the devices of each replica, and how values are combined over them.
        choose_layout: returns a variable's completed spec and its layout; raises if the strategy does not
            support such a variable.
        parameter_device: the device of state with a single copy; None if each replica has a copy.
        places_values: whether values are placed on the mesh, rather than wherever JAX places them.
        plain_values: whether per-replica values are plain arrays, because there is only one replica.
        cluster_resolver: the resolver of the cluster; None for single-machine strategies.
        find_shards: returns how the update of a variable is sharded over the replicas, or None if the
            variable is too small for that. None if the strategy shards nothing.
        partition_rules: partitions for variables by name.
        shards: what is sharded over the replicas.
        servers: the parameter servers that hold its variables; None if the values are in this process.
        why_not_assignable: why values can't be assigned to a logical device; None if they can.
    """

    communicator: Communicator
    choose_layout: Callable[[VariableSpec], tuple[VariableSpec, Layout]]
    parameter_device: Any = None
    places_values: bool = True
    plain_values: bool = False
    cluster_resolver: ClusterResolver | None = None
    find_shards: Callable[[VariableSpec], Sharded | None] | None = None
    partition_rules: PartitionRules = NO_RULES
    shards: ShardOptions = ShardOptions()
    servers: Servers | None = None
    why_not_assignable: str | None = None
