"""The writes of one step, as one message for each server.

Dense operands are divided and packed in the step's own program. Rows are divided on the host, which knows
which server has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from replicax.parameter_server._packing import Packing
from replicax.parameter_server._placement import Placement, placement_of
from replicax.parameter_server._plans import Operand, Plan, Update, WriteOne, plan_number
from replicax.parameter_server._rows import rows_on
from replicax.variables import METHODS, Sending, Variable

__all__ = ["Parcel", "make_parcel"]


@final
@dataclasses.dataclass(frozen=True)
class Parcel:
    """What the arrays of a push are: the buffers of each server, in order, then rows."""

    number: str
    plans: dict[int, Plan]
    rows: tuple[tuple[Placement, bool], ...]
    """For each pair of values and row numbers, where the variable is and whether equal rows add up."""
    row_numbers: dict[int, tuple[int, ...]]
    """For each server the pairs that it needs."""

    def messages(self, arrays: Sequence[np.ndarray]) -> Iterator[tuple[int, list[Any], list[Any]]]:
        """For each server its buffers and its rows."""
        rest = iter(arrays)
        buffers = {
            server: [next(rest) for _ in range(plan.packing.num_buffers)]
            for server, plan in self.plans.items()
        }
        pairs = [(next(rest), next(rest)) for _ in self.rows]
        for server in self.plans:
            rows = [self._rows_on(server, n, *pairs[n]) for n in self.row_numbers.get(server, ())]
            yield server, buffers[server], rows

    def _rows_on(self, server: int, number: int, values: np.ndarray, indices: np.ndarray) -> Any:
        placement, adds = self.rows[number]
        part = placement.on(server)
        assert part is not None
        return rows_on(part, values, indices, adds=adds)


def make_parcel(sendings: Sequence[Sending]) -> tuple[list[Any], Parcel]:
    """The arrays to transfer, and the parcel that they make up."""
    maker = _Maker()
    for sending in sendings:
        if isinstance(sending.what[0], Variable):
            variable, method = sending.what
            maker.add_write(variable, method, sending.arrays)
        else:
            key, variables, kinds, counter = sending.what
            maker.add_update(key, variables, kinds, counter, sending.arrays)
    return maker.finish()


@final
class _Maker:
    """Collects the operations and operands of each server."""

    def __init__(self) -> None:
        self._dense: dict[int, list[Any]] = {}
        self._operations: dict[int, list[Any]] = {}
        self._rows: list[tuple[Placement, bool, Any, Any]] = []
        self._row_numbers: dict[int, list[int]] = {}

    def add_write(self, variable: Variable, method: Any, arrays: Sequence[Any]) -> None:
        """A write of one variable."""
        placement = placement_of(variable)
        operands = self._operands(variable, arrays, adds=method.name in ("scatter_add", "scatter_sub"))
        for server, operand in operands.items():
            self._on(server).append(WriteOne(placement.key, method.name, operand))

    def add_update(
        self, key: str, variables: Sequence[Variable], kinds: Any, counter: Variable, arrays: Sequence[Any]
    ) -> None:
        """An update by an optimizer; counts it, unless the update itself changes the counter."""
        rest, operands = iter(arrays), []
        for variable, is_rows in zip(variables, kinds, strict=True):
            own = [next(rest) for _ in range(2 if is_rows else 1)]
            operands.append(self._operands(variable, own, adds=True))
        servers = {server for own in operands for server in own}
        counts = counter._spec.is_slot
        if counts:
            servers |= {part.server for part in placement_of(counter).parts}
        for server in sorted(servers):
            gradients = tuple(own.get(server) for own in operands)
            self._on(server).append(Update(key, gradients))
        if not counts:
            self.add_write(counter, METHODS["assign_add"], [jnp.int32(1)])

    def _operands(self, variable: Variable, arrays: Sequence[Any], *, adds: bool) -> dict[int, Operand]:
        """The operand of each server that has a part of the variable."""
        placement = placement_of(variable)
        if len(arrays) == 2:
            return self._row_operands(placement, *arrays, adds=adds)
        operands, (array,) = {}, arrays
        by_rows = placement.is_divided and np.shape(array)[:1] == variable.shape[:1]
        by_rows = by_rows and np.ndim(array) == len(variable.shape)
        for part in placement.parts:
            own = self._dense.setdefault(part.server, [])
            operands[part.server] = Operand(len(own))
            own.append(array[part.start : part.stop] if by_rows else array)
        return operands

    def _row_operands(
        self, placement: Placement, values: Any, indices: Any, *, adds: bool
    ) -> dict[int, Operand]:
        operands = {}
        indices = jnp.asarray(indices)
        indices = jnp.where(indices < 0, indices + placement.parts[-1].stop, indices)
        values = jnp.broadcast_to(values, (*indices.shape, *np.shape(values)[indices.ndim :]))
        for part in placement.parts:
            numbers = self._row_numbers.setdefault(part.server, [])
            operands[part.server] = Operand(len(numbers), is_rows=True)
            numbers.append(len(self._rows))
        self._rows.append((placement, adds, values, indices))
        return operands

    def _on(self, server: int) -> list[Any]:
        return self._operations.setdefault(server, [])

    def finish(self) -> tuple[list[Any], Parcel]:
        """The arrays and the parcel."""
        arrays, plans = [], {}
        for server in sorted(self._operations):
            dense = [jnp.asarray(array) for array in self._dense.get(server, [])]
            packing = Packing([(array.shape, array.dtype) for array in dense])
            plans[server] = Plan(packing, tuple(self._operations[server]))
            arrays += packing.pack(dense)
        for _, _, values, indices in self._rows:
            arrays += [values, indices]
        rows = tuple((placement, adds) for placement, adds, *_ in self._rows)
        numbers = {server: tuple(own) for server, own in self._row_numbers.items()}
        return arrays, Parcel(plan_number(plans), plans, rows, numbers)
