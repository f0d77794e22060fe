"""Frames of a step that is being traced: the variables that it uses, and their tracers.

`ProgramFrame` is for the step as a whole, where values are global arrays. `ReplicaFrame` is for the replica
function of a `strategy.run` in the step, which is traced once for all replicas; values there are local to a
replica.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import jax
import jax.numpy as jnp

from replicax._jax import at_trace, current_program, current_trace, is_tracer, trace_of, unknown
from replicax.contexts import Incomplete, Origins, current, enter
from replicax.errors import ContextError, TracingError, VariableError
from replicax.execution._numbering import CannotWeave
from replicax.topology import ReplicaMesh
from replicax.values import Mirrored, is_number
from replicax.variables import Cell, Deferred, Frame, Sending, Table, Variable, row_numbers

__all__ = ["EagerCallNeeded", "FreshTraceNeeded", "ProgramFrame", "ReplicaFrame"]


class FreshTraceNeeded(BaseException):
    """A variable, or a replica's id or mask, is read inside `scan`, `jit` or a similar function.

    JAX caches traces of such functions, and a cached trace would contain the value that was read. So the
    step must be traced again under `fresh_traces`, with a new token after each write. An exception is the
    only way out of such a trace. Not an `Exception`, so that user code does not catch it.
    """


class EagerCallNeeded(BaseException):
    """A variable is created with a traced initial value: an eager call must compute it."""


def _check_program(frame_program: Any, fresh: bool) -> None:
    if not fresh and current_program() is not frame_program:
        raise FreshTraceNeeded


def _check_trace(trace: Any, variable: Variable) -> None:
    if current_trace() is not trace:
        raise TracingError(
            f"The variable {variable.name!r} is written inside a function that JAX traces separately "
            "(grad, scan, cond, while_loop, vmap, ...), so the new value would be lost. Differentiate with "
            "`rx.value_and_grad(fn, variables)`, where `fn` may write variables and update metrics; or "
            "return the value from that function and assign it afterwards."
        )


@final
class ProgramFrame(Frame):
    """A whole step: from the arrays of its variables to their new arrays."""

    def __init__(
        self,
        inputs: dict[Any, Any] | None,
        *,
        fresh: bool,
        origins: dict[Any, Origins] | None = None,
        is_scratch: bool = False,
        tag: Any = None,
        tables: Mapping[Any, Table | None] | None = None,
    ) -> None:
        """Trace with `inputs`, the tracers of the variables; None to find the variables first.

        `tables` has the rows of each variable that the step only looks up by row, or None if they are not
        known yet.

        `origins` is what earlier traces of the step found out about padded batches. A scratch frame is for
        a trace that only determines shapes: it must not create variables. Cached traces of inner functions
        are reused between steps with an equal `tag`.
        """
        self._inputs = inputs
        self._is_scratch = is_scratch
        self._origins = {} if origins is None else origins
        self._num_padded_runs = 0
        self.known: list[Variable] = [ref.deref() for ref in inputs or ()]
        self._trace, self._program = current_trace(), current_program()
        self._cells: dict[Any, Cell] = {}
        self.fresh, self.tag = fresh, tag
        self.touched: dict[Any, Variable] = {}
        self.written: dict[Any, Variable] = {}
        self.created: list[Variable] = []
        self.mesh: ReplicaMesh | None = None
        self.sendings: list[Sending] = []
        """What is sent to servers after the step has run."""
        self._tables = dict(tables or {})
        self.lookups: list[tuple[Variable, Any]] = []
        """For each lookup in a variable on servers, the row numbers; only in a discovery trace."""
        self.hidden_lookups: list[Variable] = []
        """Variables whose row numbers exist only inside a function that JAX traces separately."""
        self.placeholders: list[Any] = []
        """The variables whose arrays are `unknown` in this trace, by the key of the placeholder."""
        self.needs_parts = False
        """Whether replicas use variables that differ between them: these must be inputs of `shard_map`."""
        self._runs_on: ReplicaMesh | None = None
        self.on_write: Callable[[], Any] = lambda: None

    @property
    def is_discovery(self) -> bool:
        """Whether this trace finds the variables of the step."""
        return self._inputs is None

    @property
    def is_transformed(self) -> bool:
        """Whether JAX differentiates or maps a function of the step that is being called now."""
        return current_trace() is not self._trace

    def origins_of(self, signature: Any, find: Callable[[], Origins]) -> Origins:
        """The origins of values in the next `strategy.run` with padded batches.

        All traces of a step make the same runs, so they are determined only once.
        """
        key = (self._num_padded_runs, signature)
        self._num_padded_runs += 1
        if key not in self._origins:
            found = find()
            if not found.is_complete:
                return found
            self._origins[key] = found
        return self._origins[key]

    def use_mesh(self, mesh: ReplicaMesh | None) -> None:
        """Run the step on `mesh`, unless it has replicas or already uses a larger mesh."""
        if self._runs_on is not None or mesh is None:
            return
        if self.mesh is None or mesh.mesh.size > self.mesh.mesh.size:
            self.mesh = mesh

    def enter_run(self, mesh: ReplicaMesh) -> None:
        """Called before replicas are traced; they read variables through this frame."""
        self.require_own_trace()
        self._runs_on = self._runs_on or mesh
        self.mesh = self._runs_on
        if self._runs_on.mesh.devices.tolist() != mesh.mesh.devices.tolist():
            raise TracingError(
                f"A compiled step runs on the devices of one strategy, but this one has a strategy.run on "
                f"{self._runs_on} and another on {mesh}. Write a separate step for each strategy."
            )

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """A `with` block that restores this frame if it ends with `CannotWeave`."""
        before = dict(self._cells), dict(self._tables), list(self.lookups), list(self.hidden_lookups)
        try:
            yield
        except CannotWeave:
            self._cells, self._tables, self.lookups, self.hidden_lookups = before
            raise

    def require_own_trace(self) -> None:
        _check_program(self._program, self.fresh)

    def renew_traces(self) -> None:
        self.on_write()

    def load(self, variable: Variable) -> Cell:
        self.require_own_trace()
        return self.cell(variable)

    def cell(self, variable: Variable) -> Cell:
        """The current cell of `variable`, which is added to the step's variables."""
        ref = variable.ref()
        if ref not in self._cells:
            self._cells[ref] = variable.layout.wrap(self._input(variable), not variable.shape)
        self.touched[ref] = variable
        return self._cells[ref]

    def _input(self, variable: Variable) -> Any:
        if self._inputs is None:
            self.use_mesh(variable.mesh)
            with at_trace(self._trace):  # the step's trace: code outside of this replica may use it
                shape = variable.layout.array_shape(variable._spec)
                self.placeholders.append(variable.ref())
                return unknown(shape, variable.dtype, len(self.placeholders) - 1)
        if variable.ref() not in self._inputs:
            raise TracingError(
                f"The step used the variable {variable.name!r} when it was traced for compilation, but not "
                "in its first trace with the same arguments. Replicax traces a step more than once, so the "
                "variables that it uses must not depend on Python state that changes between the traces."
            )
        return self._inputs[variable.ref()]

    def store(self, variable: Variable, cell: Cell) -> None:
        _check_trace(self._trace, variable)
        ref = variable.ref()
        self.cell(variable)
        self._cells[ref] = cell
        self.written[ref] = variable
        self.on_write()

    def send(self, sending: Sending) -> None:
        self.sendings.append(sending)

    def table(self, variable: Variable) -> Table | None:
        found = self.table_anywhere(variable)
        if found is not None:
            self.require_own_trace()
        return found

    def table_anywhere(self, variable: Variable) -> Table | None:
        """The rows of `variable` that the step has, in and outside of its replicas."""
        ref = variable.ref()
        if ref in self._tables and self._tables[ref] is None:
            self._tables[ref] = self._unknown_table(variable)
        return self._tables.get(ref)

    def _unknown_table(self, variable: Variable) -> Table:
        self.use_mesh(variable.mesh)
        with at_trace(self._trace):
            numbers, rows = unknown((1,), jnp.int32), unknown((1, *variable.shape[1:]), variable.dtype)
        return Table(numbers, rows, variable.shape)

    def note_lookup(self, variable: Variable, indices: Any) -> None:
        if not self.is_discovery:
            return
        if is_tracer(indices) and trace_of(indices) is not self._trace:
            self.hidden_lookups.append(variable)
            return
        with at_trace(self._trace):
            self.lookups.append((variable, row_numbers(indices, variable.shape[0]).reshape(-1)))

    def adopt(self, variable: Variable) -> None:
        if not self.is_discovery:
            raise VariableError(
                f"The function creates the variable {variable.name!r} on every call. A compiled step may "
                "create variables only once: store it, and create it only if it does not exist yet, "
                "`if self.v is None: self.v = rx.Variable(...)`."
            )
        if not variable._spec.is_slot:  # the optimizer keeps slots, so the next call finds them
            self.created.append(variable)

    def creating(self) -> contextlib.AbstractContextManager[None]:
        if self._is_scratch:
            raise Incomplete
        return jax.ensure_compile_time_eval()

    def initial_value(self, value: Any) -> Any:
        value = value() if callable(value) else value
        if is_tracer(value):
            raise EagerCallNeeded
        return value

    def array(self, variable: Variable) -> Any:
        """The current global array of a variable."""
        return variable.layout.unwrap(self.cell(variable))


@final
class ReplicaFrame(Frame):
    """The frame of a replica function in a step, traced once for all replicas."""

    is_one_replica = True

    def __init__(
        self, outer: ProgramFrame, mesh: ReplicaMesh, cells: Mapping[Any, Cell], *, alike: bool = True
    ) -> None:
        """A frame inside `outer`; `cells` has the variables that differ between replicas.

        `alike`: whether the replicas have the same shapes, so that this one trace serves all of them.
        """
        self.alike = alike
        self.merged: list[Any] = []
        """What merge functions returned, if the replicas are not alike."""
        self.outer = outer
        self._mesh = mesh
        self._trace, self._program = current_trace(), current_program()
        self._cells: dict[Any, Cell] = dict(cells)
        self.written: dict[Any, Variable] = {}
        self.deferred: list[Deferred] = []

    def require_own_trace(self) -> None:
        _check_program(self._program, self.outer.fresh)

    def renew_traces(self) -> None:
        self.outer.renew_traces()

    def note_merged(self, leaves: list[Any]) -> None:
        """Note what a merge function returned: it must be the same in the traces of all replicas."""
        for leaf in leaves:
            value = leaf.whole if isinstance(leaf, Mirrored) else leaf
            if not is_number(value):
                continue
            if is_tracer(value) and trace_of(value) is not self._trace:
                raise CannotWeave("they make a merge_call inside a function that JAX differentiates")
            self.merged.append(jnp.asarray(value))

    def defer(self, update: Deferred) -> bool:
        self.deferred.append(update)
        return True

    def send(self, sending: Sending) -> None:
        """Return the arrays from the replicas as equal copies; the step sends them after the replicas."""

        def send_from_step(arrays: list[Any]) -> None:
            self.outer.send(sending._replace(arrays=arrays))

        equal = [None] * len(sending.arrays)
        self.defer(Deferred(current().strategy, sending.arrays, equal, send_from_step, ()))

    def table(self, variable: Variable) -> Table | None:
        found = self.outer.table_anywhere(variable)
        if found is not None:
            self.require_own_trace()
        return found

    def note_lookup(self, variable: Variable, indices: Any) -> None:
        """Return the row numbers of all replicas together."""
        if trace_of(indices) is not self._trace or not self.outer.is_discovery:
            self.outer.note_lookup(variable, indices)
            return

        def note_all(arrays: list[Any]) -> None:
            self.outer.note_lookup(variable, arrays[0])

        with at_trace(self._trace):
            numbers = jax.lax.all_gather(jnp.reshape(indices, -1), self._mesh.axis_name, tiled=True)
        self.defer(Deferred(current().strategy, [numbers], [None], note_all, ()))

    def _make_deferred_updates(self, variable: Variable) -> None:
        """Make the deferred updates now if one of them concerns `variable`."""
        if not any(v is variable for update in self.deferred for v in update.variables):
            return
        updates = [update for update in self.deferred if update.variables]
        self.deferred = [update for update in self.deferred if not update.variables]
        with at_trace(self._trace):
            for deferred in updates:
                whole = [
                    x if layout is None else layout.gathered(x)
                    for x, layout in zip(deferred.arrays, deferred.layouts, strict=True)
                ]
                with enter(current().inner(deferred.strategy).with_frame(self)):
                    deferred.update(whole)

    def load(self, variable: Variable) -> Cell:
        self.require_own_trace()
        self._make_deferred_updates(variable)
        ref = variable.ref()
        if ref not in self._cells:
            self._cells[ref] = self._enter(variable)
        return self._cells[ref]

    def _enter(self, variable: Variable) -> Cell:
        """The cell inside the replica: the outer one if replicas agree, else this replica's part."""
        cell = self.outer.cell(variable)
        if not variable.layout.is_split or (variable.mesh != self._mesh and not variable.layout.differs):
            return variable.layout.replica_cell(cell) if variable.mesh == self._mesh else cell
        if variable.mesh != self._mesh:
            raise ContextError(
                f"The ON_READ variable {variable.name!r} has a part on each replica of "
                f"{variable.distribute_strategy!r}, but is read in a compiled replica of another strategy. "
                "Read it outside of the step, and pass the value as an argument."
            )
        if not self.outer.is_discovery:
            raise TracingError(f"The variable {variable.name!r} was not found by the first trace.")
        self.outer.needs_parts = True
        spec = variable._spec
        return variable.layout.part_cell(jnp.zeros(variable.layout.part_shape(spec), spec.dtype), spec)

    def store(self, variable: Variable, cell: Cell) -> None:
        _check_trace(self._trace, variable)
        self.load(variable)
        self._cells[variable.ref()] = cell
        self.written[variable.ref()] = variable
        self.outer.on_write()

    def local_output(self, variable: Variable) -> Any:
        """This replica's new value of a written variable, or its part of a split one."""
        cell: Any = self._cells[variable.ref()]
        return variable.layout.part(cell) if variable.layout.is_split else cell.whole

    def adopt(self, variable: Variable) -> None:
        self.outer.adopt(variable)

    def creating(self) -> contextlib.AbstractContextManager[None]:
        return self.outer.creating()

    def initial_value(self, value: Any) -> Any:
        return self.outer.initial_value(value)
