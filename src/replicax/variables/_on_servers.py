"""The layout of variables on parameter servers.

This process has a copy on all of its devices, which it fetches before each use. A compiled step fetches all
of its variables together before it runs; if it only looks up rows of a variable, it fetches only those
rows. Writes are sent to the servers, which apply them to whatever value they then hold. Until the next
fetch, this process sees its own writes applied to its own copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_staging, is_tracer
from replicax._recording import unrecorded
from replicax.collectives import Communicator
from replicax.contexts import current
from replicax.errors import VariableError
from replicax.values import IndexedSlices, Mirrored, PerReplica
from replicax.variables._aggregation import write_combined
from replicax.variables._frames import Sending
from replicax.variables._recorded import watched_by
from replicax.variables._servers import Servers
from replicax.variables._shared import SharedValue
from replicax.variables._spec import VariableSpec
from replicax.variables._table import Table, padded_rows, row_numbers
from replicax.variables._writes import Write

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["OnServers"]


@final
class OnServers(SharedValue):
    """On parameter servers, whole or in parts.

    Args:
        communicator: combines values over the replicas of this process.
        servers: the servers.
        placement: which server holds which part; opaque to all but `servers`.
    """

    on_mesh = True

    def __init__(self, communicator: Communicator, servers: Servers, placement: Any) -> None:
        super().__init__(communicator)
        self._servers = servers
        self.placement = placement

    @property
    def device(self) -> Any:
        return self.mesh.local_devices[0]

    @property
    def servers(self) -> Servers:
        return self._servers

    def place(self, value: Any) -> Any:
        return self.mesh.replicate(value)

    def initial(self, spec: VariableSpec, value: Any) -> None:
        self._servers.create(spec, self.placement, value)

    def wrap(self, array: Any, scalar: bool) -> Mirrored:
        return Mirrored.from_whole(array, self.mesh)

    def refresh(self, variables: Sequence[Variable]) -> None:
        self._servers.pull(variables)

    def read_copy(self, variable: Variable, local_index: int) -> Any:
        return current().frame.load(variable).select(local_index)

    def look_up(self, variable: Variable, indices: Any) -> Any:
        here, indices = current(), unrecorded(indices)
        here.frame.note_lookup(variable, indices)
        table = here.frame.table(variable)
        if table is None and here.frame.is_eager and not here.tapes and not is_staging():
            table = self._fetched(variable, indices)
        if table is None:
            return super().look_up(variable, indices)
        return table.with_rows(watched_by(here.tapes, variable, table.rows)).take(indices)

    def _fetched(self, variable: Variable, indices: Any) -> Table:
        """The rows at `indices`, from the servers."""
        numbers = np.asarray(row_numbers(indices, variable.shape[0]))
        ((found, rows),) = self._servers.pull((), [(variable, numbers)])
        arrays = padded_rows(found, rows, max(1, len(found)), variable.shape[0])
        numbers, rows = jax.device_put(arrays, self.device)
        return Table(numbers, rows, variable.shape)

    def write_in_replica(self, variable: Variable, replica: Any, write: Write) -> Any:
        if self.mesh.num_replicas == 1:
            return self.write(variable, write)
        return write_combined(variable, replica, write)

    def write_copy(self, variable: Variable, local_index: int, write: Write) -> Any:
        return self.write(variable, write)

    def write(self, variable: Variable, write: Write) -> Any:
        frame, operand = current().frame, _operand(variable, write, write.operand)
        if write.replaces:
            operand = jnp.broadcast_to(operand.astype(variable.dtype), variable.shape)
        rows = isinstance(operand, IndexedSlices)
        arrays = [operand.values, operand.indices] if rows else [operand]
        frame.send(Sending(self._servers, (variable, write.method), arrays))
        if frame.is_eager:
            return operand if write.replaces else self.read(variable)
        new = variable._fitted(write.applied_to(frame.load(variable).whole, operand))
        frame.store(variable, self.wrap(new, False))
        return new


def _operand(variable: Variable, write: Write, value: Any) -> Any:
    """The value to write, as arrays that are the same for all replicas."""
    if isinstance(value, IndexedSlices):
        values, indices = (_operand(variable, write, part) for part in (value.values, value.indices))
        return IndexedSlices(values, jnp.asarray(indices), value.dense_shape)
    if isinstance(value, PerReplica):
        raise VariableError(
            f"{write.name} of the variable {variable.name!r}, which is on parameter servers, got a "
            "PerReplica value. Reduce it first (`strategy.reduce`), or write it in a replica function with "
            "an aggregation."
        )
    if isinstance(value, Mirrored):
        value = value.whole if is_tracer(value.whole) else value.to_plain()
    array = jnp.asarray(value)
    return array.astype(variable.dtype) if getattr(array, "weak_type", False) else array
