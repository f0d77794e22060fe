"""Which server has which part of a variable."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import final

from replicax.errors import VariableError
from replicax.variables import OnServers, Variable, VariableSpec

__all__ = ["Part", "Placement", "Placer", "placement_of"]

_numbers = itertools.count()


@final
@dataclasses.dataclass(frozen=True)
class Part:
    """Some rows of a variable on one server; all of them if the variable is a scalar."""

    server: int
    start: int
    stop: int


@final
@dataclasses.dataclass(frozen=True)
class Placement:
    """The parts of a variable, which has the same key on all servers that have one."""

    key: str
    parts: tuple[Part, ...]
    copies: bool = False
    """Whether every part is the whole value: state that several servers need and keep equal."""

    @property
    def is_divided(self) -> bool:
        """Whether no server has the whole value."""
        return len(self.parts) > 1 and not self.copies

    @property
    def to_read(self) -> tuple[Part, ...]:
        """The parts that make up the value."""
        return self.parts[:1] if self.copies else self.parts

    def on(self, server: int) -> Part | None:
        """The part that a server has."""
        return next((part for part in self.parts if part.server == server), None)


@final
class Placer:
    """Places variables on the servers with the least data.

    Args:
        num_servers: the number of servers.
        partitioner: returns the number of parts of a shape and dtype along each axis; None for one part.
    """

    def __init__(self, num_servers: int, partitioner: Callable[..., Sequence[int]] | None) -> None:
        self._bytes = [0] * num_servers
        self._partitioner = partitioner

    def place(self, spec: VariableSpec) -> Placement:
        """Where a new variable goes; a slot goes to the same servers as its variable."""
        key = f"{next(_numbers)}:{spec.name}"
        if spec.slot_of:
            return self._beside(key, spec)
        if spec.is_slot:  # state that belongs to all variables of an optimizer, known before they are
            parts = tuple(Part(server, 0, _num_rows(spec)) for server in range(len(self._bytes)))
            return Placement(key, parts, copies=len(parts) > 1)
        num_parts = self._num_parts(spec)
        if num_parts == 1:
            return Placement(key, (self._take(spec.num_bytes, 0, _num_rows(spec)),))
        rows, bounds = _num_rows(spec), [0]
        for i in range(num_parts):
            bounds.append(bounds[-1] + rows // num_parts + (i < rows % num_parts))
        free = sorted(range(len(self._bytes)), key=lambda server: self._bytes[server])[:num_parts]
        parts = [
            Part(server, *bound) for server, bound in zip(free, itertools.pairwise(bounds), strict=True)
        ]
        for part in parts:
            self._bytes[part.server] += spec.num_bytes * (part.stop - part.start) // rows
        return Placement(key, tuple(parts))

    def _take(self, num_bytes: int, start: int, stop: int) -> Part:
        server = min(range(len(self._bytes)), key=lambda server: self._bytes[server])
        self._bytes[server] += num_bytes
        return Part(server, start, stop)

    def _num_parts(self, spec: VariableSpec) -> int:
        """More parts than servers would only share a server, so they are one part there."""
        if self._partitioner is None or not spec.shape or spec.is_slot:
            return 1
        counts = list(self._partitioner(spec.shape, spec.dtype))
        if len(counts) != len(spec.shape) or any(count != 1 for count in counts[1:]):
            raise VariableError(
                f"The partitioner returned {counts} for the variable '{spec.name}:0' of shape {spec.shape}."
                " Variables are divided along their first axis: return one number for each axis, and 1 "
                "for all but the first."
            )
        return max(1, min(counts[0], len(self._bytes), spec.shape[0]))

    def _beside(self, key: str, spec: VariableSpec) -> Placement:
        placements = [placement_of(variable) for variable in spec.slot_of]
        if len(placements) == 1 and spec.shape == spec.slot_of[0].shape:
            return Placement(key, placements[0].parts)
        servers = sorted({part.server for placement in placements for part in placement.parts})
        parts = tuple(Part(server, 0, _num_rows(spec)) for server in servers)
        return Placement(key, parts, copies=len(parts) > 1)


def placement_of(variable: Variable) -> Placement:
    """Where a variable is."""
    layout = variable.layout
    assert isinstance(layout, OnServers)
    return layout.placement


def _num_rows(spec: VariableSpec) -> int:
    return spec.shape[0] if spec.shape else 1
