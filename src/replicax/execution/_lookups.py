"""Which rows a compiled step looks up in variables on parameter servers.

A step that only looks up rows of a variable does not need the whole variable. So the part of its program
that computes the row numbers runs first, then the rows are fetched and passed to the step. The row numbers
may depend on the step's arguments, but not on variables, whose values have not been fetched yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import program_of
from replicax.execution._program import ProgramFrame
from replicax.topology import ReplicaMesh
from replicax.variables import Table, Variable, padded_rows

__all__ = ["Lookups", "looked_up", "obstacles", "warn_of_whole_tables"]

_logger = logging.getLogger("replicax")


@final
class Lookups:
    """The variables that a step only looks up by row, so that it gets those rows instead of all.

    Args:
        variables: the variables.
        traced: the program that computes the row numbers of each lookup from the step's arguments.
        lookups: the variable and the abstract row numbers of each lookup.
    """

    def __init__(
        self, variables: Sequence[Variable], traced: Any, lookups: Sequence[tuple[Variable, Any]]
    ) -> None:
        self.variables = list(variables)
        self.mesh: ReplicaMesh | None = None
        """The devices of the step."""
        needed = [any(v is own for own in variables) for v, _ in lookups]
        program = program_of(traced, needed)
        assert program is not None
        lookups = [lookup for lookup, is_needed in zip(lookups, needed, strict=True) if is_needed]
        places = [[i for i, (v, _) in enumerate(lookups) if v is own] for own in variables]
        counts = [sum(lookups[i][1].size for i in own) for own in places]
        self._sizes = [max(1, min(n, v.shape[0])) for n, v in zip(counts, variables, strict=True)]

        def numbers(arguments: list[Any]) -> list[Any]:
            found = program(*arguments)
            return [jnp.concatenate([found[i] for i in own]) for own in places]

        self._numbers = jax.jit(numbers)

    @property
    def num_arrays(self) -> int:
        """How many extra arguments the step has for the rows."""
        return 2 * len(self.variables)

    def numbers(self, arguments: list[Any]) -> list[np.ndarray]:
        """For each variable, the row numbers that a call with these arguments looks up."""
        return [np.asarray(numbers) for numbers in self._numbers(arguments)]

    def arrays(self, found: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[Any]:
        """The step's extra arguments, from the row numbers and rows that were fetched."""
        assert self.mesh is not None
        both = zip(found, self._sizes, self.variables, strict=True)
        padded = [padded_rows(*rows, size, v.shape[0]) for rows, size, v in both]
        return [self.mesh.replicate(array) for pair in padded for array in pair]

    def empty(self) -> list[Any]:
        """Extra arguments without rows, to compile the step with."""
        none = [(np.zeros(0, np.int32), np.zeros((0, *v.shape[1:]), v.dtype)) for v in self.variables]
        return self.arrays(none)

    def tables(self, arrays: Sequence[Any]) -> dict[Any, Table]:
        """The step's tables, from the tracers of its extra arguments."""
        pairs = zip(arrays[::2], arrays[1::2], self.variables, strict=True)
        return {v.ref(): Table(numbers, rows, v.shape) for numbers, rows, v in pairs}


def looked_up(frame: ProgramFrame) -> list[Variable]:
    """The variables on servers in which a step has looked up rows."""
    found = [*(variable for variable, _ in frame.lookups), *frame.hidden_lookups]
    return list({variable.ref(): variable for variable in found}.values())


def obstacles(variables: Sequence[Variable], frame: ProgramFrame, traced: Any) -> dict[Any, str]:
    """The variables that must be fetched in full, by reference, and why."""
    found: dict[Any, str] = {}
    for variable in variables:
        own = [v is variable for v, _ in frame.lookups]
        if variable.ref() in frame.touched:
            found[variable.ref()] = "the step also reads or writes it as a whole"
        elif any(v is variable for v in frame.hidden_lookups):
            found[variable.ref()] = (
                "the row numbers are computed inside a function that JAX traces separately (scan, vmap, "
                "jit, ...); look the rows up outside of it"
            )
        elif program_of(traced, own) is None:
            found[variable.ref()] = (
                "the row numbers depend on variables, so they are not known before the step runs"
            )
    return found


_warned: set[tuple[str, str]] = set()


def warn_of_whole_tables(reasons: Mapping[Any, str]) -> None:
    """Log once per variable why it is fetched in full."""
    for ref, reason in reasons.items():
        name = ref.deref().name
        if (name, reason) not in _warned:
            _warned.add((name, reason))
            _logger.warning(
                "Every step fetches all of the variable %r from the parameter servers, not just the rows "
                "that it looks up: %s.",
                name,
                reason,
            )
