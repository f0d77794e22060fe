"""A model that predicts the step time on more devices than there are.

The rows per replica stay the same, so a device computes as long as before. What changes is the time of the
collectives among the replicas. The model has four terms:

    bytes       a collective moves the same bytes on any number of devices, which is what XLA compiles to
    hosts       the devices of a host combine their values first; then hosts exchange them, each sending
                what an optimal algorithm sends: 2 (h - 1) / h of the bytes for an all-reduce among h hosts
    latency     log2(h) rounds of messages between hosts, twice as many for an all-reduce
    overlap     a fraction of that time is hidden behind computation

It ignores congestion, slow hosts, input, and the gap between advertised and attained bandwidth. Real
efficiency is lower where these matter, so pass attained bandwidths.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import final

from replicax._text import table, time_text
from replicax.planning._collectives import Collective

__all__ = ["Interconnect", "Scaling", "ScalingPoint", "predict"]


@final
@dataclasses.dataclass(frozen=True)
class Interconnect:
    """The bandwidth and latency between devices and between hosts; see `Explanation.scaling`.

    >>> ethernet = rx.Interconnect(bandwidth=25e9 / 8, devices_per_host=4)      # 25 Gbit/s for 4 GPUs
    >>> f"{ethernet.seconds('all-reduce', 100e6, num_devices=64):.3f} s"
    '0.060 s'
    """

    bandwidth: float
    """The bytes per second that a host attains when all its devices send to other hosts."""
    latency: float = 10e-6
    """The seconds until a small message reaches another host."""
    devices_per_host: int = 1
    """How many devices a host has."""
    local_bandwidth: float = math.inf
    """The bytes per second that a device attains when it sends to others on its host."""
    local_latency: float = 0.0
    """The seconds until a small message reaches another device on the host."""

    def __post_init__(self) -> None:
        for name in ("bandwidth", "local_bandwidth"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"rx.Interconnect({name}={getattr(self, name)!r}): pass bytes per second, more than 0."
                )
        for name in ("latency", "local_latency"):
            if not getattr(self, name) >= 0:
                raise ValueError(
                    f"rx.Interconnect({name}={getattr(self, name)!r}): pass seconds, 0 or more."
                )
        if not (isinstance(self.devices_per_host, int) and self.devices_per_host > 0):
            raise ValueError(
                f"rx.Interconnect(devices_per_host={self.devices_per_host!r}): pass an int, 1 or more."
            )

    def seconds(self, kind: str, num_bytes: float, num_devices: int, neighbours: int = 1) -> float:
        """How long a collective takes.

        Args:
            kind: XLA's name, such as "all-reduce".
            num_bytes: the size of the whole value on a device.
            num_devices: how many devices take part.
            neighbours: how many collectives of this kind run at the same time on adjacent devices, as with
                logical devices; they share the devices of a host.
        """
        local = max(1, min(num_devices, self.devices_per_host // neighbours))
        hosts = math.ceil(num_devices / local)
        sharing = min(neighbours, self.devices_per_host)
        rounds = 2 if kind == "all-reduce" else 1
        # These combine the values of a host's devices before the host sends; other kinds can't.
        sent = num_bytes if kind in ("all-reduce", "all-gather", "reduce-scatter") else num_bytes * local
        return rounds * (
            (local - 1) / local * num_bytes / self.local_bandwidth
            + (hosts - 1) / hosts * sent * sharing / self.bandwidth
            + math.ceil(math.log2(local)) * self.local_latency
            + math.ceil(math.log2(hosts)) * self.latency
        )


@final
@dataclasses.dataclass(frozen=True)
class ScalingPoint:
    """The predicted step time for one number of replicas, in seconds."""

    num_replicas: int
    compute: float
    """How long a device computes."""
    collectives: float
    """How long the collectives take."""
    exposed: float
    """The time in `collectives` that is not hidden behind computation."""

    @property
    def seconds(self) -> float:
        """The time of a step."""
        return self.compute + self.exposed

    @property
    def efficiency(self) -> float:
        """Examples per second per device, relative to a device that does not communicate."""
        return self.compute / self.seconds


@final
@dataclasses.dataclass(frozen=True)
class Scaling:
    """Predicted step times for several numbers of replicas: the result of `Explanation.scaling`."""

    points: tuple[ScalingPoint, ...]

    def __str__(self) -> str:
        header = ("replicas", "a step", "collectives", "not hidden", "efficiency")
        rows = [
            (
                f"{p.num_replicas:,}",
                time_text(p.seconds),
                time_text(p.collectives),
                time_text(p.exposed),
                f"{100 * p.efficiency:.1f} %",
            )
            for p in self.points
        ]
        return table("predicted, with the same rows for each replica", [header, *rows], range(5))

    __repr__ = __str__


def predict(
    collectives: Iterable[Collective],
    compute: float,
    num_replicas: Sequence[int],
    interconnect: Interconnect,
    *,
    overlap: float = 0.0,
    replica_axis: str = "replica",
    devices_per_replica: int = 1,
) -> Scaling:
    """Predict the times of a step that computes for `compute` seconds and has these collectives."""
    collectives = tuple(collectives)

    def point(count: int) -> ScalingPoint:
        total = 0.0
        for c in collectives:
            among_replicas = replica_axis in c.axis.split("+")
            neighbours = devices_per_replica if c.axis == replica_axis else 1
            devices = count * (devices_per_replica // neighbours) if among_replicas else c.num_devices
            total += (c.times or 1) * interconnect.seconds(c.kind, c.bytes, devices, neighbours)
        return ScalingPoint(count, compute, total, total - min(overlap * total, compute))

    return Scaling(tuple(map(point, num_replicas)))
