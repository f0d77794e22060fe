"""Looks up the operations of a profile in the texts of the compiled programs."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import final

import jax

from replicax.planning import COLLECTIVES, Collective, ProgramText, collectives_in, user_line_of
from replicax.reporting._parts import Kinds
from replicax.topology import ReplicaMesh

__all__ = ["Programs"]

_CONTAINERS = ("while", "conditional", "call")


@final
class Programs:
    """The programs of some compiled functions.

    Args:
        programs: the programs, starting with the step's.
        mesh: the step's mesh; None if JAX chooses the device.
    """

    def __init__(self, programs: Iterable[jax.stages.Compiled], mesh: ReplicaMesh | None) -> None:
        self._programs, self._mesh = list(programs), mesh
        self._texts = [ProgramText(program.as_text() or "") for program in self._programs]

    @functools.cached_property
    def kinds(self) -> Kinds:
        """Which operations are collectives, and which contain others."""
        return Kinds(self._names(COLLECTIVES), self._names(_CONTAINERS))

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of the step."""
        return collectives_in(self._programs[0], self._mesh) if self._programs else ()

    def line(self, operation: str) -> str:
        """The line of user code that an operation comes from, as "file:line"; empty if unknown."""
        for text in self._texts:
            for found in text.operations():
                if found.name == operation:
                    return user_line_of(text.frames(found))
        return ""

    def _names(self, kinds: tuple[str, ...]) -> frozenset[str]:
        return frozenset(found.name for text in self._texts for found in text.operations(kinds))
