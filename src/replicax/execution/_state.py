"""The arrays that a compiled step works on, between the variables and the program.

A program takes over the arrays that it writes into (they are donated) and returns new ones. A step that
runs again and again keeps them: handing hundreds of arrays to their variables and back would cost more than
all else that a call does. Each variable knows its holder and asks for its array back when anybody wants it,
so nobody ever sees an array that was given away.

While a step runs, its arrays are nowhere. `state_lock` makes other threads wait for that moment to pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from replicax.variables import Variable, state_version

__all__ = ["StepState"]


@final
class StepState:
    """The variables of one step: those it only reads, and those whose arrays it may hold."""

    def __init__(self, read: Sequence[Variable], written: Sequence[Variable]) -> None:
        """Hold nothing yet."""
        self.read = list(read)
        self.written = list(written)
        self.held: list[Any] | None = None

    def arrays_to_read(self) -> list[Any]:
        """The current arrays of the variables that are only read."""
        return [_current(v, for_writing=False) for v in self.read]

    def check_out(self) -> list[Any]:
        """The arrays to write into, which nobody else has; `check_in` must follow."""
        arrays, self.held = self.held, None
        if arrays is None:
            arrays = [_current(v, for_writing=True) for v in self.written]
            for variable in self.written:
                variable._array, variable._holder, variable.was_written = None, self, True
        return arrays

    def check_in(self, arrays: list[Any]) -> None:
        """Hold the new arrays, until somebody asks for one."""
        self.held = arrays
        state_version.count += 1

    def fail(self, arrays: list[Any], error: BaseException) -> None:
        """Take back what was checked out, after a run that failed with `error`."""
        self.held = arrays
        self.give_back()
        lost = [v.name for v, array in zip(self.written, arrays, strict=True) if array.is_deleted()]
        if lost:
            error.add_note(
                f"The step failed after it had taken over the arrays of {', '.join(lost)}; their values "
                "are lost. Assign them, or restore a checkpoint, before the next step."
            )

    def give_back(self) -> None:
        """Put the arrays that are held into their variables."""
        if self.held is not None:
            for variable, array in zip(self.written, self.held, strict=True):
                variable._array, variable._holder = array, None
            self.held = None


def _current(variable: Variable, *, for_writing: bool) -> Any:
    """The variable's array, for a step to read or to write into."""
    if variable._loose or variable._holder is not None:
        variable._settle(for_writing=for_writing)
    return variable._array
