"""Synchronous training on the devices of one machine, with one part of the state on each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from replicax.collectives import Communicator, DefaultAllReduce
from replicax.strategies._answers import Answers
from replicax.strategies._mirrored import mirrored_layouts
from replicax.strategies._strategy import Strategy
from replicax.topology import REPLICA_AXIS, ReplicaMesh, resolve_devices
from replicax.types import Device
from replicax.variables import Layout, Replicated, Sharded, VariableSpec, axis_to_shard

__all__ = ["ShardedStrategy"]

_Setting = Literal["optimizer", "all"]
MIN_SHARD_BYTES = 64 * 1024


class ShardedStrategy(Strategy):
    """One replica on each device; large state is divided among the devices instead of copied to each.

    The training loop is that of `MirroredStrategy`, and so are its results.

    Args:
        devices: names ("GPU:0", "/cpu:1") or `jax.Device`s; None takes all GPUs, or all TPUs, or all
            CPU devices.
        shard: "optimizer" divides the slots of `rx.Optimizer` (ZeRO-1): each device updates its part of the
            parameters. "all" divides the parameters too (ZeRO-3, FSDP): replicas gather a parameter where
            they read it, and again for its gradient.
        min_shard_bytes: variables smaller than this are copied to each device.
        axis_name: the name of the replicas' axis in `jax.lax.pmean(x, axis_name)` and similar functions.

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
        shard: _Setting = "all",
        *,
        min_shard_bytes: int = MIN_SHARD_BYTES,
        axis_name: str = REPLICA_AXIS,
    ) -> None:
        """Choose the devices and what is divided."""
        if shard not in get_args(_Setting):
            raise ValueError(f"ShardedStrategy(shard={shard!r}): pass 'optimizer' or 'all'.")
        communicator = Communicator(ReplicaMesh(resolve_devices(devices), axis_name), DefaultAllReduce())
        find_shards = shard_finder(communicator, min_shard_bytes)
        choose = sharded_layouts(communicator, find_shards, only_slots=shard == "optimizer")
        super().__init__(Answers(communicator, choose, find_shards=find_shards))


def shard_finder(communicator: Communicator, min_bytes: int) -> Callable[[VariableSpec], Sharded | None]:
    """A function that returns how a variable is divided; None if it is too small."""
    layout = functools.cache(functools.partial(Sharded, communicator))
    count = communicator.num_replicas

    def find(spec: VariableSpec) -> Sharded | None:
        if count == 1 or not spec.shape or spec.num_bytes < max(min_bytes, 1):
            return None
        axis = axis_to_shard(spec.shape, count)
        return layout(axis, spec.shape[axis])

    return find


def sharded_layouts(
    communicator: Communicator, find_shards: Callable[[VariableSpec], Sharded | None], *, only_slots: bool
) -> Callable[[VariableSpec], tuple[VariableSpec, Layout]]:
    """The `choose_layout` of strategies that divide variables, or only the slots of optimizers."""
    choose_mirrored = mirrored_layouts(communicator)

    def choose(spec: VariableSpec) -> tuple[VariableSpec, Layout]:
        spec, layout = choose_mirrored(spec)
        if not isinstance(layout, Replicated) or (only_slots and not spec.is_slot):
            return spec, layout
        return spec, find_shards(spec) or layout

    return choose
