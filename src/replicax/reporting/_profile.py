"""Reads a profile: which operations each device ran, and when the program waited, called and compiled.

JAX's profiler writes planes, which have lines, which have events. A GPU operation is an event on that GPU's
plane; an operation of a CPU device is an event on the host plane, with the device's number. Our own
annotations on the host plane mark what the program does, so everything is on one clock.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

import jax

from replicax.reporting._intervals import Intervals, union

__all__ = ["COMPILED", "INPUT", "RECORDED", "STEP", "Operation", "Profile"]

RECORDED = "replicax recorded steps"
STEP = "replicax step"
INPUT = "replicax input"
COMPILED = "replicax compiled"

_HOST = "/host:CPU"
_DEVICE = "/device:"
_PREPARING = ("H2D Dispatch",)  # JAX's own annotation


@final
@dataclasses.dataclass(frozen=True)
class Operation:
    """One run of an operation on a device; times are in nanoseconds."""

    name: str
    """XLA's name, such as "dot.3"."""
    start: float
    end: float
    run: Any
    """The same for all operations of one run of a program; None if the profile does not say."""


@final
@dataclasses.dataclass(frozen=True)
class Profile:
    """The recorded steps."""

    window: tuple[float, float]
    """From the start of the first recorded step to the end of the last."""
    steps: Intervals
    """When the program called a compiled step."""
    input: Intervals
    """When it waited for input."""
    compiling: Intervals
    """When JAX traced or compiled something."""
    devices: dict[str, list[Operation]]
    """The operations of each device, by its name."""
    copying: dict[str, Intervals] = dataclasses.field(default_factory=dict)
    """When arrays were copied from the host to a device, by its name."""
    preparing: Intervals = ()
    """When JAX's threads prepared such copies; a call of a step waits for those of its batch."""

    @classmethod
    def read(cls, folder: str | Path, platform: str, device_ids: Mapping[int, int]) -> Profile:
        """Read what JAX's profiler has written to a folder.

        Args:
            folder: the folder.
            platform: read the operations of this platform's devices, "cpu" or "gpu".
            device_ids: device number in the profile -> device number in this process.
        """
        path = next(Path(folder).rglob("*.xplane.pb"))
        # JAX's reader emits a warning about its types, and aborts the process if warnings are errors.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
            return cls._of(planes, platform, device_ids)

    @classmethod
    def _of(cls, planes: list[Any], platform: str, device_ids: Mapping[int, int]) -> Profile:
        events = [event for plane in planes if plane.name == _HOST for event in _events(plane)]
        devices = _by_number(events) if platform == "cpu" else dict(_by_plane(planes))
        numbered = [(*name.split(":"), operations) for name, operations in devices.items()]
        kept = {
            f"{kind}:{device_ids[int(number)]}": operations
            for kind, number, operations in numbered
            if int(number) in device_ids
        }
        return cls(
            window=_annotated(events, RECORDED)[0],
            steps=union(_annotated(events, STEP)),
            input=union(_annotated(events, INPUT)),
            compiling=union(_compilations(events)),
            devices={name: sorted(x, key=lambda op: op.start) for name, x in sorted(kept.items())},
            copying={name: union(_copies(plane)) for name, plane in _planes_of_devices(planes)},
            preparing=union(_annotated(events, *_PREPARING)),
        )


def _events(plane: Any) -> Iterable[Any]:
    return (event for line in plane.lines for event in line.events)


def _by_number(events: list[Any]) -> dict[str, list[Operation]]:
    """The operations of CPU devices."""
    devices: dict[str, list[Operation]] = {}
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats and "device_ordinal" in stats:
            devices.setdefault(f"CPU:{stats['device_ordinal']}", []).append(_operation(event, stats))
    return devices


def _planes_of_devices(planes: list[Any]) -> Iterable[tuple[str, Any]]:
    for plane in planes:
        if plane.name.startswith(_DEVICE):
            yield plane.name.removeprefix(_DEVICE), plane


def _by_plane(planes: list[Any]) -> Iterable[tuple[str, list[Operation]]]:
    """The operations of other devices, each of which has its own plane."""
    for name, plane in _planes_of_devices(planes):
        found = [event for event in _events(plane) if "hlo_op" in dict(event.stats)]
        if found:
            yield name, list(map(_operation, found))


def _copies(plane: Any) -> Iterable[tuple[float, float]]:
    """When a GPU copied arrays from the host."""
    for event in _events(plane):
        if event.name.startswith("Memcpy") and "H2D" in event.name:
            yield event.start_ns, event.start_ns + event.duration_ns


def _operation(event: Any, stats: dict[Any, Any] | None = None) -> Operation:
    stats = dict(event.stats) if stats is None else stats
    start = event.start_ns
    return Operation(stats["hlo_op"], start, start + event.duration_ns, stats.get("run_id"))


def _annotated(events: list[Any], *names: str) -> list[tuple[float, float]]:
    return [(e.start_ns, e.start_ns + e.duration_ns) for e in events if e.name in names]


def _compilations(events: list[Any]) -> Iterable[tuple[float, float]]:
    """When JAX compiled: it is marked at the end, with its duration."""
    for event in events:
        if event.name == COMPILED:
            yield event.start_ns - 1e9 * float(dict(event.stats)["seconds"]), event.start_ns
