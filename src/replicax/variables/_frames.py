"""Who answers when a variable is read or written.

Eagerly the variable itself does. While `rx.function` traces a step, a frame does: it knows the tracer
that stands for the variable's value and keeps what was written, until the compiled step returns it.
Both speak of a variable's *cell*: a `Mirrored` if its copies are equal, a `PerReplica` if they differ.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, final

from replicax._jax import is_staging, is_tracer, staged_for
from replicax.collectives import Recipe, spread
from replicax.errors import TracingError
from replicax.topology import ReplicaMesh
from replicax.values import Mirrored, PerReplica

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["Cell", "Frame", "RecordingFrame", "current_frame", "journal", "note_before_write", "use_frame"]

Cell = Mirrored | PerReplica


class Frame(abc.ABC):
    """Keeps the cells of variables for as long as it is current."""

    @abc.abstractmethod
    def load(self, variable: Variable) -> Cell:
        """The current cell of `variable`."""

    @abc.abstractmethod
    def store(self, variable: Variable, cell: Cell) -> None:
        """Make `cell` the current one."""

    @abc.abstractmethod
    def adopt(self, variable: Variable) -> None:
        """Take note of a variable that was just created."""

    @abc.abstractmethod
    def creating(self) -> contextlib.AbstractContextManager[None]:
        """The circumstances in which a variable is made: its value must outlive any trace."""

    @abc.abstractmethod
    def initial_value(self, value: Any) -> Any:
        """The initial value of a variable being created: called if it is a function, not a tracer."""

    @abc.abstractmethod
    def spread(self, recipe: Recipe, value: Mirrored, mesh: ReplicaMesh) -> PerReplica:
        """Each replica's part of one value, as `recipe` makes it."""

    def require_own_trace(self) -> None:  # noqa: B027 - most have nothing to say
        """Take note that something is read which no trace that JAX keeps may hold."""


class RecordingFrame(Frame):
    """A frame in which nothing can be written now: it takes note of writes, to be made later."""

    @abc.abstractmethod
    def record(self, variable: Variable, apply: Any, value: Any, what: str) -> Any:
        """Take note of a write; returns the new value, or None if it is not known yet."""


@final
class _EagerFrame(Frame):
    """The variable holds its value."""

    def load(self, variable: Variable) -> Cell:
        if is_staging():
            raise TracingError(_baked_in(variable, "read"))
        return variable._get_cell()

    def store(self, variable: Variable, cell: Cell) -> None:
        if is_staging() or _holds_tracer(cell):
            raise TracingError(_baked_in(variable, "written"))
        note_before_write([variable])
        variable._set_cell(cell)

    def adopt(self, variable: Variable) -> None:
        pass

    def creating(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def initial_value(self, value: Any) -> Any:
        if is_tracer(value) or is_staging():
            raise TracingError(
                "A variable was created while JAX traces a function (jit, grad, scan, ...), so its "
                "value would not outlive the trace. Create it before, or compile the step with "
                "`rx.function`, which may create variables in its first call."
            )
        return value() if callable(value) else value

    def spread(self, recipe: Recipe, value: Mirrored, mesh: ReplicaMesh) -> PerReplica:
        return spread(recipe, value, mesh)


def _holds_tracer(cell: Cell) -> bool:
    if isinstance(cell, Mirrored):
        return is_tracer(cell.whole) or any(map(is_tracer, cell.components))
    return cell.is_traced_apart or cell.is_local or is_tracer(cell._array)


def _baked_in(variable: Variable, verb: str) -> str:
    if not is_staging():
        return (
            f"{variable!r} would be {verb} with a value that exists only while JAX differentiates or "
            "maps a function. Return the new value from that function and assign it outside."
        )
    return (
        f"The variable {variable.name!r} is {verb} inside a function that JAX compiles "
        f"({staged_for()}). JAX would keep today's value as a constant, and later changes would be "
        "lost. Use `@rx.function` in place of `@jax.jit` around the step; inside an eager step, read "
        "`v.value` before the scan, cond or jit and pass it in."
    )


_EAGER = _EagerFrame()
_frame: ContextVar[Frame] = ContextVar("replicax_frame", default=_EAGER)
_journal: ContextVar[dict[Any, Cell] | None] = ContextVar("replicax_journal", default=None)


def current_frame() -> Frame:
    """The frame that answers for variables here."""
    return _frame.get()


@contextlib.contextmanager
def use_frame(frame: Frame) -> Iterator[None]:
    """Let `frame` answer during a `with` block."""
    token = _frame.set(frame)
    try:
        yield
    finally:
        _frame.reset(token)


@contextlib.contextmanager
def journal(*, keep: bool) -> Iterator[None]:
    """Undo the eager writes made during a `with` block: if it fails, or always unless `keep`."""
    changes: dict[Any, Cell] = {}
    outer = _journal.get()
    token = _journal.set(changes)
    done = False
    try:
        yield
        done = keep
    finally:
        _journal.reset(token)
        if not done:
            for ref, cell in changes.items():
                ref.deref()._set_cell(cell)
        elif outer is not None:
            # What stays for now may be undone by the block around this one.
            for ref, cell in changes.items():
                outer.setdefault(ref, cell)


def note_before_write(variables: Iterable[Variable]) -> None:
    """Let the journal, if there is one, know the values of variables that are about to be written."""
    changes = _journal.get()
    if changes is not None:
        for variable in variables:
            changes.setdefault(variable.ref(), variable._get_cell())
