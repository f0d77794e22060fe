"""Synchronous training on the devices of one machine, with state sharded over them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from replicax.collectives import Communicator, DefaultAllReduce
from replicax.strategies._answers import MIN_SHARD_BYTES, Answers, ShardOptions
from replicax.strategies._mirrored import mirrored_layouts
from replicax.strategies._strategy import Strategy
from replicax.topology import REPLICA_AXIS, ReplicaMesh, group_devices, resolve_devices
from replicax.types import Device
from replicax.variables import Layout, PartitionRules, Sharded, VariableSpec, axis_to_shard

__all__ = ["Setting", "ShardedStrategy", "sharded_answers"]

Setting = Literal["optimizer", "all"]


class ShardedStrategy(Strategy):
    """One replica on each device; large state is sharded over the devices instead of replicated.

    The training loop and its results are the same as with `MirroredStrategy`.

    Args:
        devices: names ("GPU:0", "/cpu:1") or `jax.Device`s; None takes all GPUs, or all TPUs, or all
            CPU devices.
        shard: "optimizer" shards the slots of `rx.Optimizer` (ZeRO-1): each device updates its part of the
            parameters. "all" also shards the parameters (ZeRO-3, FSDP): replicas gather a parameter where
            they read it, and again in the backward pass.
        gather_again: with "all", whether replicas gather a parameter again in the backward pass. False
            keeps it from the forward pass until its gradient is computed: fewer bytes are sent, but at the
            end of the forward pass each device holds all parameters.
        min_shard_bytes: variables smaller than this are replicated.
        logical_devices: the number of devices per replica, its logical devices. Variables with a partition
            are sharded over them, and XLA partitions the computation; see `rx.Variable`.
        partition_rules: partitions for variables by name, for a whole model:
            `{"mlp/in/kernel": [1, 4], "mlp/out/kernel": [4, 1]}`. The keys are regular expressions that are
            searched for in the names of variables.
        axis_name: the name of the replica axis in `jax.lax.pmean(x, axis_name)` and similar functions.

    >>> strategy = rx.ShardedStrategy(["CPU:0", "CPU:1"], shard="all")
    >>> with strategy.scope():
    ...     w, b = rx.Variable(jnp.ones((512, 512))), rx.Variable(jnp.zeros(512))
    >>> isinstance(w, rx.ShardedVariable), isinstance(b, rx.ShardedVariable)
    (True, False)
    >>> strategy.reduce("SUM", strategy.run(lambda: jnp.sum(w)), axis=None)
    Array(524288., dtype=float32)
    """

    def __init__(
        self,
        devices: Sequence[str | Device] | None = None,
        shard: Setting = "all",
        *,
        gather_again: bool = True,
        min_shard_bytes: int = MIN_SHARD_BYTES,
        logical_devices: int = 1,
        partition_rules: Mapping[str, Sequence[int]] | None = None,
        axis_name: str = REPLICA_AXIS,
    ) -> None:
        grid = group_devices(resolve_devices(devices), logical_devices)
        communicator = Communicator(ReplicaMesh(grid, axis_name), DefaultAllReduce())
        rules = PartitionRules(partition_rules)
        if shard not in get_args(Setting):
            raise ValueError(f"ShardedStrategy(shard={shard!r}): pass 'optimizer' or 'all'.")
        shards = ShardOptions(shard, min_shard_bytes, gather_again)
        super().__init__(sharded_answers(communicator, shards, rules))


def sharded_answers(communicator: Communicator, shards: ShardOptions, rules: PartitionRules) -> Answers:
    """The answers of a strategy that shards what `shards` selects over its replicas."""
    choose_mirrored = mirrored_layouts(communicator)
    if shards.shard == "mirrored":
        return Answers(communicator, choose_mirrored, partition_rules=rules, shards=shards)
    find_shards = _shard_finder(communicator, shards)

    def choose(spec: VariableSpec) -> tuple[VariableSpec, Layout]:
        spec, layout = choose_mirrored(spec)
        whole = shards.shard == "optimizer" and not spec.is_slot
        if whole or layout.differs:
            return spec, layout
        return spec, find_shards(spec) or layout

    return Answers(communicator, choose, find_shards=find_shards, partition_rules=rules, shards=shards)


def _shard_finder(
    communicator: Communicator, shards: ShardOptions
) -> Callable[[VariableSpec], Sharded | None]:
    """A function that returns how a variable is sharded over the replicas.

    It returns None if a device's part would be too small, or if a partition already splits every axis.
    """
    layout = functools.cache(functools.partial(Sharded, communicator, gather_again=shards.gather_again))
    count = communicator.num_replicas

    def find(spec: VariableSpec) -> Sharded | None:
        parts = 1 if spec.partition is None else math.prod(spec.partition)
        if count == 1 or not spec.shape or spec.num_bytes // parts < max(shards.min_bytes, 1):
            return None
        axis = axis_to_shard(spec.shape, count, spec.partition)
        partition = spec.partition if parts > 1 else None
        return None if axis is None else layout(axis, spec.shape[axis], partition)

    return find
