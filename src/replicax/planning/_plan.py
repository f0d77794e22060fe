"""Makes a strategy trace as if it had other devices, or sharded its state differently.

A step closes over its strategy and variables, so to trace it for 64 devices the strategy itself must have
them. For the duration of a trace, `as_planned` gives the strategy another mesh and its variables other
layouts. Nothing is computed or moved: the arrays stay in the store, which is locked meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import jax

from replicax._jax import planned_cpu_devices
from replicax.strategies import Answers, ShardSetting, Strategy, sharded_answers
from replicax.topology import ReplicaMesh
from replicax.types import Device
from replicax.variables import Variable

__all__ = ["as_planned", "plan"]


def plan(strategy: Strategy, num_replicas: int, shard: ShardSetting) -> Answers:
    """The answers that this strategy would give with another number of replicas or another `shard`."""
    mesh = strategy.mesh
    if num_replicas != mesh.num_replicas:
        mesh = _plan_mesh(mesh, num_replicas)
    now = strategy.answers
    shards = dataclasses.replace(now.shards, shard=shard)
    return sharded_answers(strategy.communicator.on(mesh), shards, now.partition_rules)


def _plan_mesh(mesh: ReplicaMesh, num_replicas: int) -> ReplicaMesh:
    size = mesh.num_logical_devices
    devices = _devices(mesh.platform, num_replicas * size)
    rows = [devices[i : i + size] for i in range(0, len(devices), size)]
    return ReplicaMesh(rows if size > 1 else devices, mesh.axis_name)


def _devices(platform: str, count: int) -> Sequence[Device]:
    """`count` devices of a platform, or of the CPU if this machine has too few."""
    existing = jax.local_devices(backend=platform)
    return existing[:count] if len(existing) >= count else planned_cpu_devices(count)


@contextlib.contextmanager
def as_planned(strategy: Strategy, variables: Sequence[Variable], answers: Answers) -> Iterator[None]:
    """A `with` block in which `strategy` gives these `answers` and lays out `variables` by them."""
    own = [v for v in variables if v.distribute_strategy is strategy]
    now, layouts = strategy.answers, [v._layout for v in own]
    with strategy.store.exclusive():
        try:
            strategy._give(answers)
            for variable in own:
                variable._layout = answers.choose_layout(variable._spec)[1]
            yield
        finally:
            strategy._give(now)
            for variable, layout in zip(own, layouts, strict=True):
                variable._layout = layout
