"""Synchronous training on the devices of several processes, with a copy of every variable on each.

It is `MirroredStrategy` on a larger mesh. The constructor does the rest: it finds out which task of the
cluster this process is, joins the other processes, and exchanges the lists of devices with them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from replicax.cluster import (
    ClusterOptions,
    ClusterResolver,
    TFConfigClusterResolver,
    detect_cluster,
    exchange_between_processes,
    find_place,
    join_cluster,
)
from replicax.collectives import (
    CommunicationImplementation,
    CommunicationOptions,
    Communicator,
    DefaultAllReduce,
    merge_options,
)
from replicax.errors import CollectiveError, DeviceError
from replicax.strategies._answers import MIN_SHARD_BYTES, ShardOptions
from replicax.strategies._sharded import Setting, sharded_answers
from replicax.strategies._strategy import Strategy
from replicax.topology import (
    REPLICA_AXIS,
    ReplicaMesh,
    device_name,
    group_devices,
    parse_device_name,
    prepare_cpu_pool,
)
from replicax.types import Device
from replicax.variables import PartitionRules

__all__ = ["MultiWorkerMirroredStrategy"]

_TIMEOUT_SECONDS = 300.0
_agreements = itertools.count()


class MultiWorkerMirroredStrategy(Strategy):
    """One replica on each device of each worker, each with a copy of every variable; copies are kept equal.

    Every worker runs the same program and creates this strategy first, before anything uses JAX: this is
    where the workers connect to each other, at the address of the first one. In a cluster of one worker, or
    in an evaluator, the strategy runs on this process alone. Without a cluster, it runs on all processes
    that JAX has: this one, unless you called `jax.distributed.initialize`.

    A worker's devices are its GPUs or TPUs, or its first CPU device if it has none. A resolver's
    `num_accelerators` can set another number (`{"CPU": 2}` for two virtual CPU devices).

    Args:
        cluster_resolver: knows the tasks of the cluster and which one this process is. None reads TF_CONFIG
            if it is set, else calls `rx.cluster.detect_cluster`; a `TFConfigClusterResolver()` reads only
            TF_CONFIG.
        communication_options: the default options of all collectives. Their `timeout_seconds` also limits
            how long the workers wait for each other here.
        shard: "optimizer" or "all" shards optimizer state or all variables over the replicas of all
            workers, as `ShardedStrategy` does on one machine; None gives each replica a copy.
        gather_again: whether replicas gather a sharded parameter again in the backward pass; see
            `ShardedStrategy`.
        min_shard_bytes: variables smaller than this are not sharded.
        logical_devices: the number of devices per replica; see `MirroredStrategy`.
        partition_rules: partitions for variables by name; see `MirroredStrategy`.
        axis_name: the name of the replica axis in `jax.lax.pmean(x, axis_name)` and similar functions.
        cluster_options: how long the workers wait for each other.

    Raises:
        BackendStartedError: JAX has already started, so this worker can't join the others.
        ClusterError: the cluster is not valid, or has parameter servers.
        ClusterTimeoutError: a worker did not connect within the timeout, by default five minutes.
        CollectiveError: `communication_options` require NCCL, but the workers have no GPUs.
        DeviceError: a worker has fewer devices than its resolver says.

    >>> strategy = rx.MultiWorkerMirroredStrategy()          # TF_CONFIG is not set: one worker
    >>> strategy.num_replicas_in_sync
    1
    >>> with strategy.scope():
    ...     w = rx.Variable(2.0)
    >>> strategy.reduce("SUM", strategy.run(lambda: w * 3), axis=None)
    Array(6., dtype=float32)
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        shard: Setting | None = None,
        gather_again: bool = True,
        min_shard_bytes: int = MIN_SHARD_BYTES,
        logical_devices: int = 1,
        partition_rules: Mapping[str, Sequence[int]] | None = None,
        axis_name: str = REPLICA_AXIS,
        cluster_options: ClusterOptions | None = None,
    ) -> None:
        """Join the cluster and find its devices."""
        options = merge_options(communication_options, None)
        shards = ShardOptions(shard or "mirrored", min_shard_bytes, gather_again)
        resolver = cluster_resolver
        if resolver is None:
            resolver = detect_cluster() or TFConfigClusterResolver()
        if not isinstance(resolver, ClusterResolver):
            raise TypeError(
                f"cluster_resolver must be an rx.cluster.ClusterResolver, got {resolver!r} of type "
                f"{type(resolver).__name__}."
            )
        join_cluster(find_place(resolver), _cluster_options(cluster_options, options))
        devices = _devices_of_all(_own_devices(resolver), options.timeout_seconds)
        mesh = ReplicaMesh(_group_by_worker(devices, logical_devices), axis_name)
        _refuse_missing_nccl(options, mesh)
        communicator = Communicator(mesh, DefaultAllReduce(), options)
        rules = PartitionRules(partition_rules)
        super().__init__(
            dataclasses.replace(sharded_answers(communicator, shards, rules), cluster_resolver=resolver)
        )


def _group_by_worker(devices: list[Device], logical_devices: int) -> list[tuple[Device, ...]]:
    """Group devices into replicas, each within one worker."""
    workers = itertools.groupby(devices, lambda device: device.process_index)
    return [row for _, own in workers for row in group_devices(list(own), logical_devices)]


def _cluster_options(given: ClusterOptions | None, options: CommunicationOptions) -> ClusterOptions:
    if not isinstance(given, ClusterOptions | None):
        raise TypeError(f"cluster_options must be an rx.cluster.ClusterOptions, got {given!r}.")
    if given is None and options.timeout_seconds is not None:
        return ClusterOptions(start_timeout_seconds=options.timeout_seconds)
    return ClusterOptions() if given is None else given


def _refuse_missing_nccl(options: CommunicationOptions, mesh: ReplicaMesh) -> None:
    if options.implementation is CommunicationImplementation.NCCL and mesh.platform != "gpu":
        raise CollectiveError(
            f"communication_options require NCCL, which needs GPUs, but the workers run on {mesh}. Use "
            "AUTO (XLA's own collectives) or RING."
        )


def _own_devices(resolver: ClusterResolver) -> list[Device]:
    prepare_cpu_pool()
    local: list[Any] = jax.local_devices()
    platform = parse_device_name(device_name(local[0])).platform
    default = 1 if platform == "CPU" else len(local)
    wanted = resolver.num_accelerators().get(platform, default)
    if not 1 <= wanted <= len(local):
        raise DeviceError(
            f"{type(resolver).__name__}.num_accelerators() gives this worker {wanted} {platform} "
            f"device(s), but JAX has {len(local)} {platform} device(s) here."
        )
    return local[:wanted]


def _devices_of_all(own: list[Device], timeout_seconds: float | None) -> list[Device]:
    """The devices of all workers, in worker order; each worker sends its own to the others."""
    processes = range(jax.process_count())
    if len(processes) == 1:
        return own
    topic = f"replicax/workers/{next(_agreements)}"
    timeout = _TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    sent = exchange_between_processes(processes, topic, 0, [d.id for d in own], lambda: False, timeout)
    by_id = {device.id: device for device in jax.devices(own[0].platform)}
    return [by_id[device_id] for device_ids in sent for device_id in device_ids]
