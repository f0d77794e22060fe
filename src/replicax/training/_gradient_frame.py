"""The frame that is current while JAX differentiates a loss function.

Reading a bound variable returns the array that JAX differentiates with respect to. Writes can't happen
inside the differentiated function, because their operands exist only in its trace. So the frame records
them, the function returns their operands as auxiliary outputs, and they are applied in order when it
returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from replicax._jax import current_program
from replicax.contexts import current
from replicax.errors import TracingError, VariableError
from replicax.training._microbatches import is_padding
from replicax.types import VariableAggregation
from replicax.values import IndexedSlices
from replicax.variables import Cell, Frame, RecordingFrame, Sending, Table, Variable, Write

__all__ = ["FreshTracesNeeded", "GradientFrame"]


class FreshTracesNeeded(BaseException):
    """A bound variable, or a replica's id or mask, is read inside `scan`, `jit` or a similar function.

    JAX caches such traces by function, so the next call would reuse a trace with the array that the
    variable is bound to now. The loss function is therefore differentiated again under `fresh_traces`. Not
    an `Exception`, so that user code does not catch it.
    """


@final
class GradientFrame(RecordingFrame):
    """Reads return bound values, writes are recorded, and everything else goes to the outer frame."""

    def __init__(
        self, outer: Frame, variables: Sequence[Variable], values: Sequence[Any], *, fresh: bool
    ) -> None:
        self._outer, self._fresh, self._program = outer, fresh, current_program()
        self._replica = current().replica
        self.is_one_replica = outer.is_one_replica
        self._cells: dict[Any, Cell] = {}
        self._tables: dict[Any, Table] = {}
        for variable, value in zip(variables, values, strict=True):
            table = outer.table(variable)
            if table is None:
                self._cells[variable.ref()] = _as_cell(variable, value)
            else:
                self._tables[variable.ref()] = table.with_rows(value)
        self._unknown: dict[Any, str] = {}
        self._writes: list[tuple[Variable, Write]] = []

    def load(self, variable: Variable) -> Cell:
        ref = variable.ref()
        if ref in self._unknown:
            raise TracingError(
                f"The variable {variable.name!r} is read after {self._unknown[ref]} in a function that "
                "rx.value_and_grad differentiates. What other replicas write to it is known only after the "
                "function has returned. Read it before the write, or use the value that you wrote."
            )
        if ref not in self._cells:
            return self._outer.load(variable)
        self._check_program()
        return self._cells[ref]

    def table(self, variable: Variable) -> Table | None:
        if variable.ref() not in self._tables:
            return self._outer.table(variable)
        self._check_program()
        return self._tables[variable.ref()]

    def note_lookup(self, variable: Variable, indices: Any) -> None:
        self._outer.note_lookup(variable, indices)

    def _check_program(self) -> None:
        if not self._fresh and current_program() is not self._program:
            raise FreshTracesNeeded

    def require_own_trace(self) -> None:
        self._check_program()
        self._outer.require_own_trace()

    def renew_traces(self) -> None:
        self._outer.renew_traces()

    def record(self, variable: Variable, write: Write) -> Any:
        what = write.name
        if current_program() is not self._program:
            raise TracingError(
                f"{what} of the variable {variable.name!r} inside a function that JAX traces separately "
                "(scan, cond, jit, ...): the new value would exist only in that trace. Return the value "
                "from that function and assign it afterwards."
            )
        if current().replica is not self._replica:
            raise TracingError(
                f"{what} of the variable {variable.name!r} in a merge_call or run inside a function that "
                "rx.value_and_grad differentiates. Write it in the function itself, or afterwards."
            )
        write = write._replace(operand=variable._checked(write.operand, write.method))
        self._writes.append((variable, write))
        return self._preview(variable, write)

    def _preview(self, variable: Variable, write: Write) -> Any:
        """The value after the write, unless it depends on other replicas."""
        alone = variable.distribute_strategy.num_replicas_in_sync == 1
        ref = variable.ref()
        if not alone and not variable.layout.differs:
            self._unknown[ref] = write.name
            return None
        new = variable._fitted(write.applied_to(variable.read_value(), write.operand))
        self._cells[ref] = _as_cell(variable, new)
        return new

    def recorded(self) -> list[Any]:
        """The operands of the writes, for the differentiated function to return."""
        return [jax.lax.stop_gradient(write.operand) for _, write in self._writes]

    def replay(self, operands: list[Any]) -> None:
        """Make the writes, with the operands that the differentiated function returned."""
        rows = current().rows
        skip = None if rows is None else is_padding(rows)
        for (variable, write), operand in zip(self._writes, operands, strict=True):
            if skip is not None:
                operand = _unless(skip, variable, operand, write.name)
            variable._write(write.method, operand, False)

    def store(self, variable: Variable, cell: Cell) -> None:
        self._outer.store(variable, cell)

    def send(self, sending: Sending) -> None:
        self._outer.send(sending)

    def adopt(self, variable: Variable) -> None:
        self._outer.adopt(variable)

    def creating(self) -> contextlib.AbstractContextManager[None]:
        return self._outer.creating()

    def initial_value(self, value: Any) -> Any:
        return self._outer.initial_value(value)


def _unless(skip: Any, variable: Variable, operand: Any, what: str) -> Any:
    """The operand of a write, replaced by one that has no effect where `skip` is true.

    The mean over rows that are all padding is NaN, which would stay in a moving average forever.
    """
    if isinstance(operand, IndexedSlices):
        unchanged: Any = _UNCHANGED.get(what)
        if unchanged is None:
            read = variable.gather_nd if what.startswith("scatter_nd") else variable.sparse_read
            unchanged = read(operand.indices)
        values = jnp.where(skip, jnp.asarray(unchanged, operand.values.dtype), operand.values)
        return IndexedSlices(values, operand.indices, operand.dense_shape)
    unchanged = _UNCHANGED.get(what)
    if what == "assign of a slice":
        raise NotImplementedError(
            f"{what} of the variable {variable.name!r} with a padded batch: padding must not be written. "
            "Use `v.assign(v.read_value().at[index].set(x))`."
        )
    if unchanged is None:
        unchanged = variable.read_value()
        if not variable.layout.differs and variable.aggregation is VariableAggregation.SUM:
            unchanged = unchanged / variable.distribute_strategy.num_replicas_in_sync
    operand = jnp.asarray(operand)
    return jnp.where(skip, jnp.asarray(unchanged, operand.dtype), operand)


_UNCHANGED = {
    "assign_add": 0,
    "assign_sub": 0,
    "scatter_add": 0,
    "scatter_sub": 0,
    "scatter_nd_add": 0,
    "scatter_nd_sub": 0,
    "assign_add of a slice": 0,
    "assign_sub of a slice": 0,
    "scatter_mul": 1,
    "scatter_div": 1,
}
"""Operands that leave a variable unchanged. For all other writes, that is the variable's own value."""


def _as_cell(variable: Variable, value: Any) -> Cell:
    """The cell of a variable whose value in this replica is `value`."""
    here = current()
    if variable.layout.differs and (
        here.replica is None or here.strategy is not variable.distribute_strategy
    ):
        raise VariableError(
            f"The ON_READ variable {variable.name!r} has a part on each replica, so it can be "
            "differentiated with respect to only in a replica function."
        )
    return variable.layout.local_cell(value)
