"""Splits the time of each device into parts that add up to the step time.

At any time in the recorded steps a device is in exactly one of these parts, the first that applies:

    compute        it runs an operation, or is between two operations of the same run of a program
    imbalance      it is in a collective that another device has not reached yet
    collectives    it is in a collective
    compilation    it is idle while JAX traces or compiles
    input          it is idle while the program waits for a batch, or one is copied to it
    host           it is idle for any other reason: Python is too slow
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import final

from replicax.reporting._intervals import Intervals, difference, intersection, length, union
from replicax.reporting._profile import Operation, Profile

__all__ = ["PARTS", "Kinds", "Parts", "device_parts", "mean_parts"]

PARTS = ("input", "host", "compilation", "imbalance", "collectives", "compute")


@final
@dataclasses.dataclass(frozen=True)
class Parts:
    """How long a device spends on each part of a step, in seconds."""

    input: float
    """Idle while the program waits for a batch, or one is copied to the device."""
    host: float
    """Idle for any other reason: waiting for Python."""
    compilation: float
    """Idle while JAX traces or compiles."""
    imbalance: float
    """In a collective that other devices reach later."""
    collectives: float
    """In a collective."""
    compute: float
    """Running any other operation."""

    @property
    def total(self) -> float:
        """The step time."""
        return sum(dataclasses.astuple(self))

    def share(self, part: str) -> float:
        """One part as a fraction of the step."""
        return getattr(self, part) / self.total if self.total else 0.0


@final
@dataclasses.dataclass(frozen=True)
class Kinds:
    """Which operations are collectives, and which only contain others, such as loops."""

    collectives: Collection[str]
    containers: Collection[str]


def device_parts(profile: Profile, kinds: Kinds) -> dict[str, dict[str, Intervals]]:
    """Device -> part -> when the device was in that part."""
    waits = _waits(profile.devices.values(), kinds)
    return {
        name: _split(profile, name, kinds, wait) for name, wait in zip(profile.devices, waits, strict=True)
    }


def mean_parts(devices: Iterable[dict[str, Intervals]], num_steps: int) -> Parts:
    """The mean over devices, in seconds per step."""
    found = list(devices)
    count = 1e9 * num_steps * len(found)
    return Parts(**{part: sum(length(device[part]) for device in found) / count for part in PARTS})


def _split(profile: Profile, name: str, kinds: Kinds, wait: Intervals) -> dict[str, Intervals]:
    window, operations, copying = [profile.window], profile.devices[name], profile.copying.get(name, [])
    plain = [
        op for op in operations if op.name not in kinds.collectives and op.name not in kinds.containers
    ]
    computing = union((op.start, op.end) for op in plain)
    communicating = union((op.start, op.end) for op in operations if op.name in kinds.collectives)
    communicating = difference(communicating, computing)
    between = difference(union([*_runs(operations), *_short_gaps(operations)]), communicating)
    busy = union([*computing, *communicating, *between])
    idle = difference(window, busy)
    compiling = intersection(idle, profile.compiling)
    waiting = union([*profile.input, *copying, *intersection(profile.preparing, profile.steps)])
    reading = intersection(difference(idle, compiling), waiting)
    parts = {
        "compute": union([*computing, *between]),
        "imbalance": intersection(communicating, wait),
        "collectives": difference(communicating, wait),
        "compilation": compiling,
        "input": reading,
        "host": difference(difference(idle, compiling), reading),
    }
    return {part: intersection(parts[part], window) for part in PARTS}


def _runs(operations: Sequence[Operation]) -> Iterable[tuple[float, float]]:
    """The interval of each run of a program, from its first operation to its last."""
    spans: dict[object, tuple[float, float]] = {}
    for op in operations:
        if op.run is not None:
            start, end = spans.get(op.run, (op.start, op.end))
            spans[op.run] = (min(start, op.start), max(end, op.end))
    return spans.values()


_SHORT = 3_000
"""The longest gap, in nanoseconds, between queued operations of a GPU; a wait for the host is longer."""


def _short_gaps(operations: Sequence[Operation]) -> Iterable[tuple[float, float]]:
    """The gaps between queued operations, for profiles that do not tell the runs apart."""
    ends = itertools.accumulate((op.end for op in operations), max)
    for (op, following), end in zip(itertools.pairwise(operations), ends, strict=False):
        if op.run is None and 0 < following.start - end < _SHORT:
            yield end, following.start


def _waits(devices: Iterable[Sequence[Operation]], kinds: Kinds) -> list[Intervals]:
    """For each device, when it was in a collective that another device had not reached yet."""
    by_name = [_occurrences(operations, kinds) for operations in devices]
    waits: list[list[tuple[float, float]]] = [[] for _ in by_name]
    for name in set().union(*by_name):
        taking_part = [
            (wait, found[name]) for wait, found in zip(waits, by_name, strict=True) if name in found
        ]
        for together in zip(*(operations for _, operations in taking_part), strict=False):
            last = max(op.start for op in together)
            for (wait, _), op in zip(taking_part, together, strict=True):
                wait.append((op.start, min(last, op.end)))
    return [union(wait) for wait in waits]


def _occurrences(operations: Sequence[Operation], kinds: Kinds) -> dict[str, list[Operation]]:
    """The runs of each collective in order, which is the same on all devices."""
    found: dict[str, list[Operation]] = {}
    for op in operations:
        if op.name in kinds.collectives:
            found.setdefault(op.name, []).append(op)
    return found
