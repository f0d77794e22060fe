"""Finds the collectives of a compiled program: kind, size, mesh axis and the line of user code."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

import jax
import numpy as np

from replicax.planning._program_text import Frame, Operation, ProgramText
from replicax.topology import ReplicaMesh

__all__ = ["COLLECTIVES", "Collective", "collectives_in", "user_line_of"]

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
"""XLA's names for the operations that communicate."""
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}")
_COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_BITS = re.compile(r"\d+")

_OWN = (str(Path(__file__).resolve().parents[1]), str(Path(jax.__file__).resolve().parent))
_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))


@final
@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation of a step."""

    kind: str
    """XLA's name: "all-reduce", "all-gather", "reduce-scatter", ..."""
    bytes: int
    """The size of the whole value on a device: what is reduced, or what has been gathered."""
    axis: str
    """The mesh axes that it communicates over, joined by "+"; empty if its groups match no axis."""
    line: str
    """The line of user code that it comes from, as "file:line"; empty if XLA does not know."""
    times: int | None
    """How often it runs in a step; None if it is in a loop of unknown length."""
    num_devices: int
    """How many devices take part."""

    @property
    def bytes_sent(self) -> int:
        """What each device sends in a step with ring algorithms; a loop of unknown length counts once."""
        rounds = 2 if self.kind == "all-reduce" else 1
        sent = rounds * self.bytes * (self.num_devices - 1) // self.num_devices
        return (1 if self.times is None else self.times) * sent


def collectives_in(compiled: jax.stages.Compiled, mesh: ReplicaMesh | None) -> tuple[Collective, ...]:
    """The collectives of a compiled program that runs on `mesh`."""
    program = ProgramText(compiled.as_text() or "")
    shape = {} if mesh is None else dict(mesh.mesh.shape)
    return tuple(_collective(x, program, shape) for x in program.operations(COLLECTIVES))


def _collective(operation: Operation, program: ProgramText, shape: dict[str, int]) -> Collective:
    groups = _groups(operation.text) or [list(range(math.prod(shape.values())))]
    count = max(map(len, groups))
    return Collective(
        kind=operation.kind.removesuffix("-start"),
        bytes=_num_bytes(operation, count),
        axis=_axis(groups, shape),
        line=user_line_of(program.frames(operation)),
        times=operation.times,
        num_devices=count,
    )


# Sizes.


def _num_bytes(operation: Operation, num_devices: int) -> int:
    sizes = [_size(dtype, shape) for dtype, shape in _SHAPE.findall(operation.result)]
    if operation.kind == "all-gather-start":  # its result is (operands, gathered values)
        return sum(sizes[len(sizes) // 2 :])
    if operation.kind == "collective-permute-start":
        return max(sizes)
    if operation.kind == "reduce-scatter":
        return sum(sizes) * num_devices
    return sum(sizes)


def _size(dtype: str, shape: str) -> int:
    bits = _BITS.search(dtype)
    size = 8 if bits is None else int(bits[0])  # "pred" is a byte, "f8e4m3fn" has 8 bits
    return math.prod(_numbers(shape)) * size // 8


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


# Axes.


def _groups(text: str) -> list[list[int]]:
    """The groups of devices that communicate with each other; empty if all devices do."""
    if (listed := _LISTED.search(text)) is not None:
        return [_numbers(group) for group in re.findall(r"\{([\d,]*)\}", listed[1])]
    if (counted := _COUNTED.search(text)) is not None:
        sizes, dimensions = _numbers(counted[1]), _numbers(counted[2])
        ids = np.arange(math.prod(dimensions)).reshape(dimensions)
        return ids.transpose(_numbers(counted[3]) if counted[3] else None).reshape(sizes).tolist()
    return []


def _axis(groups: Sequence[Sequence[int]], shape: dict[str, int]) -> str:
    """The smallest set of mesh axes along which each group communicates."""
    names = [name for name, size in shape.items() if size > 1]
    ids = np.arange(math.prod(shape.values())).reshape(tuple(shape.values()))
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, count):
            if _include(_along(ids, list(shape), chosen), groups):
                return "+".join(chosen)
    return ""


def _along(ids: np.ndarray, names: list[str], chosen: Iterable[str]) -> list[set[int]]:
    """The groups of devices that differ only in their coordinates on the `chosen` axes."""
    axes = [names.index(name) for name in chosen]
    size = math.prod(ids.shape[axis] for axis in axes)
    moved = np.moveaxis(ids, axes, range(-len(axes), 0))
    return [set(row.tolist()) for row in moved.reshape(-1, size)]


def _include(sets: list[set[int]], groups: Sequence[Sequence[int]]) -> bool:
    return all(any(group_set.issuperset(group) for group_set in sets) for group in groups)


# Lines.


def user_line_of(frames: Iterator[Frame]) -> str:
    """The innermost line of user code; without one, that of another library."""
    foreign = [frame for frame in frames if not frame.file.startswith((*_OWN, "<frozen"))]
    own = [frame for frame in foreign if not frame.file.startswith(_LIBRARIES)]
    chosen = next(iter(own or foreign), None)
    return "" if chosen is None else f"{chosen.file}:{chosen.line}"
