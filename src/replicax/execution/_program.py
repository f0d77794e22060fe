"""Frames of a step that is being traced: which variables it touches, and the tracers that stand for them.

`ProgramFrame` is the step as a whole, where values are global arrays. `ReplicaFrame` is the inside of one
`strategy.run` in it, where one trace stands for all replicas and values are a replica's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from replicax._jax import current_program, current_trace, is_tracer
from replicax.collectives import Recipe, spread
from replicax.errors import TracingError, VariableError
from replicax.topology import REPLICA_AXIS, ReplicaMesh
from replicax.values import Mirrored, PerReplica
from replicax.variables import Cell, Frame, SyncOnReadVariable, Variable

__all__ = ["EagerCallNeeded", "FreshTraceNeeded", "ProgramFrame", "ReplicaFrame", "layout"]


class FreshTraceNeeded(BaseException):
    """A variable, or what a replica knows of itself, is read inside `scan`, `jit` or their like.

    JAX keeps their traces by function, and a kept trace would hold on to what it read. So the step must be
    traced with `fresh_traces`, anew after each write. Not an `Exception`: no user code should catch it.
    """


class EagerCallNeeded(BaseException):
    """A variable is created with a traced initial value: one eager call must find the real one."""


def _check_program(frame_program: Any, fresh: bool) -> None:
    if not fresh and current_program() is not frame_program:
        raise FreshTraceNeeded


def _check_trace(trace: Any, variable: Variable) -> None:
    if current_trace() is not trace:
        raise TracingError(
            f"The variable {variable.name!r} is written inside a function that JAX traces by itself "
            "(grad, scan, cond, while_loop, vmap, ...), from which the new value could not come out. "
            "Return the value from that function and assign it afterwards."
        )


@final
class ProgramFrame(Frame):
    """A whole step: from the arrays of the variables it touches to their new arrays."""

    def __init__(self, inputs: dict[Any, Any] | None, *, fresh: bool) -> None:
        """Trace with `inputs`, the variables' tracers; None only finds out which variables there are."""
        self._inputs = inputs
        self.known: list[Variable] = [ref.deref() for ref in inputs or ()]
        self._trace, self._program = current_trace(), current_program()
        self._cells: dict[Any, Cell] = {}
        self.fresh = fresh
        self.touched: dict[Any, Variable] = {}
        self.written: dict[Any, Variable] = {}
        self.created: list[Variable] = []
        self.mesh: ReplicaMesh | None = None
        self._runs_on: ReplicaMesh | None = None
        self.on_write: Callable[[], Any] = lambda: None

    @property
    def is_discovery(self) -> bool:
        """Whether this trace only finds out which variables the step touches."""
        return self._inputs is None

    def use_mesh(self, mesh: ReplicaMesh | None) -> None:
        """Take note of the devices that the step runs on."""
        if mesh is not None and (self.mesh is None or mesh.mesh.size > self.mesh.mesh.size):
            self.mesh = mesh

    def enter_run(self, mesh: ReplicaMesh) -> None:
        """Take note of replicas that are about to be traced; they read variables through this frame."""
        self.require_own_trace()
        self._runs_on = self._runs_on or mesh
        if self._runs_on.mesh.devices.tolist() != mesh.mesh.devices.tolist():
            raise TracingError(
                f"A compiled step runs on the devices of one strategy, and this one has a strategy.run on "
                f"{self._runs_on} and another on {mesh}. Write a step of its own for each strategy."
            )

    def require_own_trace(self) -> None:
        _check_program(self._program, self.fresh)

    def load(self, variable: Variable) -> Cell:
        self.require_own_trace()
        return self.cell(variable)

    def cell(self, variable: Variable) -> Cell:
        """The current cell of `variable`, which is taken into the step."""
        ref = variable.ref()
        if ref not in self._cells:
            self._cells[ref] = variable._wrap(self._input(variable))
        self.touched[ref] = variable
        return self._cells[ref]

    def _input(self, variable: Variable) -> Any:
        if self._inputs is None:
            self.use_mesh(variable.mesh)
            return jnp.zeros(global_shape(variable), variable.dtype)
        if variable.ref() not in self._inputs:
            raise TracingError(
                f"The step touched the variable {variable.name!r} when it was traced for compilation, "
                "but not in the trace before, from the same arguments. Replicax calls a step's function "
                "more than once: which variables it uses must not depend on anything that changes."
            )
        return self._inputs[variable.ref()]

    def store(self, variable: Variable, cell: Cell) -> None:
        _check_trace(self._trace, variable)
        ref = variable.ref()
        self.cell(variable)
        self._cells[ref] = cell
        self.written[ref] = variable
        self.on_write()

    def adopt(self, variable: Variable) -> None:
        if not self.is_discovery:
            raise VariableError(
                f"The function creates the variable {variable.name!r} on every call. A compiled step may "
                "create variables only once: keep it and create it only if it is not there yet, "
                "`if self.v is None: self.v = rx.Variable(...)`."
            )
        self.created.append(variable)

    def creating(self) -> contextlib.AbstractContextManager[None]:
        return jax.ensure_compile_time_eval()

    def initial_value(self, value: Any) -> Any:
        value = value() if callable(value) else value
        if is_tracer(value):
            raise EagerCallNeeded
        return value

    def spread(self, recipe: Recipe, value: Mirrored, mesh: ReplicaMesh) -> PerReplica:
        return spread(recipe, value, mesh)

    def output(self, variable: Variable) -> Any:
        """The new global array of a written variable."""
        return variable._unwrap(self._cells[variable.ref()])


def global_shape(variable: Variable) -> tuple[int, ...]:
    """The shape of a variable's global array: that of all replicas' parts together if it is ON_READ."""
    if not isinstance(variable, SyncOnReadVariable):
        return variable.shape
    count = variable.mesh.num_replicas
    return (count * variable.shape[0], *variable.shape[1:]) if variable.ndim else (count,)


def layout(variable: Variable, mesh: ReplicaMesh) -> Sharding:
    """How a variable's global array lies on the devices of a step."""
    return mesh.sharded if isinstance(variable, SyncOnReadVariable) else mesh.replicated


@final
class ReplicaFrame(Frame):
    """One replica's inside of a step, traced once for all of them."""

    def __init__(self, outer: ProgramFrame, mesh: ReplicaMesh, cells: Mapping[Any, Cell]) -> None:
        """Inside `outer`, with the local cells of the ON_READ variables that it is known to touch."""
        self.outer = outer
        self._mesh = mesh
        self._trace, self._program = current_trace(), current_program()
        self._cells: dict[Any, Cell] = dict(cells)
        self.written: dict[Any, Variable] = {}

    def require_own_trace(self) -> None:
        _check_program(self._program, self.outer.fresh)

    def load(self, variable: Variable) -> Cell:
        self.require_own_trace()
        ref = variable.ref()
        if ref not in self._cells:
            self._cells[ref] = self._enter(variable)
        return self._cells[ref]

    def _enter(self, variable: Variable) -> Cell:
        """A mirrored variable is one value inside and outside; of an ON_READ one, take the own part."""
        cell = self.outer.cell(variable)
        if isinstance(cell, Mirrored) or variable.mesh != self._mesh:
            return cell
        if not self.outer.is_discovery:
            raise TracingError(f"The variable {variable.name!r} was not found by the trace before.")
        return PerReplica.from_local(jnp.zeros(variable.shape, variable.dtype), self._mesh)

    def store(self, variable: Variable, cell: Cell) -> None:
        _check_trace(self._trace, variable)
        self.load(variable)
        self._cells[variable.ref()] = cell
        self.written[variable.ref()] = variable
        self.outer.on_write()

    def local_output(self, variable: Variable) -> Any:
        """This replica's new value of a written variable."""
        cell = self._cells[variable.ref()]
        return cell.whole if isinstance(cell, Mirrored) else cell.select(0)

    def adopt(self, variable: Variable) -> None:
        self.outer.adopt(variable)

    def creating(self) -> contextlib.AbstractContextManager[None]:
        return self.outer.creating()

    def initial_value(self, value: Any) -> Any:
        return self.outer.initial_value(value)

    def spread(self, recipe: Recipe, value: Mirrored, mesh: ReplicaMesh) -> PerReplica:
        (part,) = recipe(REPLICA_AXIS, value.whole)
        return PerReplica.from_local(part, mesh)
