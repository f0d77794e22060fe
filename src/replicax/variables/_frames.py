"""Frames: where a variable's value is read from and written to.

In eager code that is the strategy's store. While `rx.function` traces a step, the step's frame has a tracer
for each variable and records the writes, which become outputs of the compiled step. A frame holds a *cell*
for each variable: a `Mirrored` if its copies are equal, a `PerReplica` if they differ. The current frame is
part of the context: `current().frame`.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final

from replicax._jax import at_trace, eval_trace, is_staging, is_tracer, staged_for
from replicax._recording import is_transforming
from replicax.contexts import StrategyProtocol, current, enter
from replicax.errors import TracingError
from replicax.values import Mirrored, PerReplica
from replicax.variables._store import exclusive

if TYPE_CHECKING:
    from replicax.variables._servers import Servers
    from replicax.variables._table import Table
    from replicax.variables._variable import Variable

__all__ = [
    "EAGER",
    "Cell",
    "Deferred",
    "EagerFrame",
    "Frame",
    "RecordingFrame",
    "Sending",
    "current_frame",
    "journal",
    "use_frame",
]

Cell = Mirrored | PerReplica
_CellT = TypeVar("_CellT", bound=Cell)
_T = TypeVar("_T")


class Frame(abc.ABC):
    """Holds the cells of variables while it is the current frame."""

    is_eager: bool = False
    """Whether a compiled step called here runs at once, rather than being traced or recorded."""
    is_one_replica: bool = False
    """Whether this is a replica function that is traced once for all replicas."""

    @abc.abstractmethod
    def load(self, variable: Variable) -> Cell:
        """The current cell of `variable`."""

    @abc.abstractmethod
    def store(self, variable: Variable, cell: Cell) -> None:
        """Make `cell` the current cell of `variable`."""

    @abc.abstractmethod
    def adopt(self, variable: Variable) -> None:
        """Register a variable that was just created."""

    @abc.abstractmethod
    def creating(self) -> contextlib.AbstractContextManager[None]:
        """A `with` block for creating a variable, whose initial value must outlive any trace."""

    @abc.abstractmethod
    def initial_value(self, value: Any) -> Any:
        """The initial value of a new variable: calls it if it is a function, and refuses tracers."""

    def modify(self, variable: Variable, compute: Callable[[], _CellT]) -> _CellT:
        """Replace the cell of `variable` by the one that `compute` makes of it, atomically; returns it.

        `compute` may be called twice.
        """
        new = compute()
        self.store(variable, new)
        return new

    def update(
        self, variables: Sequence[Variable], compute: Callable[[], _T], write: Callable[[_T], None]
    ) -> _T:
        """Compute new values of several variables and write them, atomically; returns what was computed.

        Args:
            variables: the variables that `compute` reads; `write` writes them, and may write others.
            compute: computes the new values. It may be called twice.
            write: writes the new values with methods such as `assign`.
        """
        new = compute()
        write(new)
        return new

    def defer(self, update: Deferred) -> bool:
        """Defer an update if this frame can; returns whether it does."""
        return False

    def renew_traces(self) -> None:  # noqa: B027 - only some frames have inner traces that JAX caches
        """Called when cached traces that read variables become invalid."""

    @abc.abstractmethod
    def send(self, sending: Sending) -> None:
        """Send arrays to servers: at once, or after the compiled step that computes them."""

    def table(self, variable: Variable) -> Table | None:
        """The rows of `variable` that a compiled step has, if it does not have all of them."""
        return None

    def note_lookup(self, variable: Variable, indices: Any) -> None:  # noqa: B027 - eager code looks up at once
        """Called when rows of a variable on servers are looked up."""

    def require_own_trace(self) -> None:  # noqa: B027 - eager code has no trace
        """Called when code reads something that must not end up in a cached trace."""


class Deferred(NamedTuple):
    """An update of variables that happens once, after the replicas of a compiled step.

    Args:
        strategy: the strategy that runs the replicas.
        arrays: what the replicas contribute: per-replica values, parts of a split layout, or equal copies.
        layouts: the layouts of `arrays`; None for per-replica values and equal copies.
        update: makes the update from the full values of `arrays`.
        variables: the variables that the update reads or writes. If a replica uses one of them, the update
            is made at that point; if there are none, it is made at the end.
    """

    strategy: StrategyProtocol
    arrays: Sequence[Any]
    layouts: Sequence[Any]
    update: Callable[[list[Any]], Any]
    variables: Sequence[Variable]


class Sending(NamedTuple):
    """A write to variables on parameter servers.

    Args:
        servers: the servers that it is sent to.
        what: what the servers do with the arrays.
        arrays: the operands of the write.
    """

    servers: Servers
    what: Any
    arrays: Sequence[Any]


class RecordingFrame(Frame):
    """A frame that records writes, to be applied later."""

    @abc.abstractmethod
    def record(self, variable: Variable, write: Any) -> Any:
        """Record a write; returns the new value, or None if it is unknown so far."""


@final
class EagerFrame(Frame):
    """Reads variables from their stores and writes them there.

    Args:
        changes: collects each variable's cell before its first write, so that writes can be undone.
        loop: compiles the replica functions of a Python loop; see `execution/_loop.py`.
        held_back: collects the new cells instead of storing them, so that they can be stored together.
    """

    def __init__(
        self,
        changes: dict[Any, Cell] | None = None,
        loop: Any = None,
        held_back: dict[Any, Cell] | None = None,
    ) -> None:
        self.is_eager = changes is None
        self.changes = changes
        self.loop = loop
        self.held_back = held_back

    def load(self, variable: Variable) -> Cell:
        if is_staging():
            raise TracingError(_baked_in(variable, "read"))
        if self.held_back and variable.ref() in self.held_back:
            return self.held_back[variable.ref()]
        variable.layout.refresh([variable])
        return variable._view()

    def store(self, variable: Variable, cell: Cell) -> None:
        if is_staging() or _holds_tracer(cell):
            raise TracingError(_baked_in(variable, "written"))
        if self.held_back is not None:
            self.held_back[variable.ref()] = cell
            return
        self.before_write([variable])
        with _untraced():
            variable._set_view(cell)

    def send(self, sending: Sending) -> None:
        if is_staging() or any(map(is_tracer, sending.arrays)):
            raise TracingError(
                "A variable on parameter servers was written inside a function that JAX traces "
                "(jit, grad, scan, ...). Compile the step with `rx.function`, or return the value from "
                "that function and assign it outside."
            )
        if self.changes is not None:
            raise TracingError(
                "A variable on parameter servers was written in a step that creates variables from traced "
                "values: the write could not be undone. Create the variables before the first step."
            )
        arrays, parcel = sending.servers.pack([sending])
        sending.servers.push(parcel, arrays, wait=True)

    def before_write(self, variables: Iterable[Variable]) -> None:
        """Save the cells of variables that are about to be written, in case the writes are undone."""
        if self.changes is not None:
            for variable in variables:
                self.changes.setdefault(variable.ref(), variable._view())

    def modify(self, variable: Variable, compute: Callable[[], _CellT]) -> _CellT:
        # The first call may compile, so the store is not locked yet.
        before, new = _arrays([variable]), compute()
        with variable._store.exclusive():
            if _arrays([variable])[0] is not before[0]:
                new = compute()  # another thread has written the variable since
            self.store(variable, new)
        return new

    def update(
        self, variables: Sequence[Variable], compute: Callable[[], _T], write: Callable[[_T], None]
    ) -> _T:
        # The first call may compile, so the stores are not locked yet.
        before, new = _arrays(variables), compute()
        with exclusive({variable._store for variable in variables}):
            if any(x is not y for x, y in zip(before, _arrays(variables), strict=True)):
                new = compute()  # another thread has written a variable since
            cells: dict[Any, Cell] = {}
            with use_frame(EagerFrame(self.changes, self.loop, cells)):
                write(new)
            self._store_together([(ref.deref(), cell) for ref, cell in cells.items()])
        return new

    def _store_together(self, cells: Sequence[tuple[Variable, Cell]]) -> None:
        """Store several cells. If an exception interrupts this, the next access to a store completes it."""
        variables = [variable for variable, _ in cells]
        self.before_write(variables)
        with _untraced():
            writes = [(variable, cell, variable.layout.unwrap(cell)) for variable, cell in cells]
        stores = {variable._store for variable in variables}
        pending: list[tuple[Variable, Cell, Any]] = []

        def finish() -> None:
            for variable, cell, array in pending:
                variable._store.views[variable._place] = cell
                variable._store.arrays[variable._place] = array
                variable.was_written = True
            pending.clear()
            for store in stores:
                store.unfinished = None

        for store in stores:
            store.unfinished = finish
        pending.extend(writes)  # before this line an exception changes nothing, after it nothing is lost
        finish()

    def adopt(self, variable: Variable) -> None:
        pass

    def creating(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def initial_value(self, value: Any) -> Any:
        if is_tracer(value) or is_staging():
            raise TracingError(
                "A variable was created while JAX traces a function (jit, grad, scan, ...), so its "
                "value would not outlive the trace. Create it before that, or compile the step with "
                "`rx.function`, which may create variables in its first call."
            )
        return value() if callable(value) else value


def _untraced() -> contextlib.AbstractContextManager[Any]:
    """Cells hold arrays only, but `jax.grad` around this code would trace the joining of their parts."""
    return at_trace(eval_trace) if is_transforming() else contextlib.nullcontext()


def _arrays(variables: Sequence[Variable]) -> list[Any]:
    """The arrays of variables, to see whether they have been replaced."""
    return [variable._store.arrays[variable._place] for variable in variables]


def _holds_tracer(cell: Cell) -> bool:
    if isinstance(cell, Mirrored):
        return any(map(is_tracer, cell._components or (cell.whole,)))
    return cell.is_traced_apart or cell.is_local or is_tracer(cell._array)


def _baked_in(variable: Variable, verb: str) -> str:
    if not is_staging():
        return (
            f"The variable {variable.name!r} would be {verb} with a value that exists only while JAX "
            "differentiates or maps a function. Differentiate with `rx.value_and_grad(fn, variables)`, "
            "where `fn` may write variables and update metrics; or return the new value from that function "
            "and assign it outside."
        )
    return (
        f"The variable {variable.name!r} is {verb} inside a function that JAX compiles "
        f"({staged_for()}). JAX would bake in the current value as a constant, and later changes would be "
        "ignored. Use `@rx.function` instead of `@jax.jit` for the step; inside an eager step, read "
        "`v.value` before the scan, cond or jit and pass it in."
    )


EAGER = EagerFrame()


def current_frame() -> Frame:
    """The frame of the current context."""
    return current().frame


def use_frame(frame: Frame) -> contextlib.AbstractContextManager[None]:
    """Make `frame` the current one during a `with` block."""
    return enter(current().with_frame(frame))


@contextlib.contextmanager
def journal(*, keep: bool) -> Iterator[None]:
    """Undo the eager writes of a `with` block if it fails or, without `keep`, in any case.

    While a step is traced there is nothing to undo: a failed trace is discarded.
    """
    outer = current_frame()
    if not isinstance(outer, EagerFrame):
        yield
        return
    changes: dict[Any, Cell] = {}
    done = False
    try:
        with use_frame(EagerFrame(changes)):
            yield
        done = keep
    finally:
        if not done:
            for ref, cell in changes.items():
                ref.deref()._set_view(cell)
        elif outer.changes is not None:
            # The enclosing block may still undo these writes.
            for ref, cell in changes.items():
                outer.changes.setdefault(ref, cell)
