"""The layout of variables whose values are on parameter servers.

This process has a copy, on all of its devices, that is fetched before each use: a compiled step fetches all
of its variables together, before it runs. Writes are sent to the servers, which apply them to the value
that they have by then. Until the next fetch, this process sees its own writes applied to its own copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import jax.numpy as jnp

from replicax._jax import is_tracer
from replicax.collectives import Communicator
from replicax.contexts import current
from replicax.errors import VariableError
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.values import IndexedSlices, Mirrored, PerReplica
from replicax.variables._aggregation import check_scatter, write_combined
from replicax.variables._frames import EagerFrame, Sending
from replicax.variables._layout import OnMesh, spread_parts
from replicax.variables._servers import Servers
from replicax.variables._spec import VariableSpec
from replicax.variables._writes import Write

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["OnServers"]


@final
class OnServers(OnMesh):
    """On parameter servers, whole or in parts.

    Args:
        communicator: of the replicas in this process.
        servers: the servers.
        placement: which of them have which part; `servers` knows what it means.
    """

    type_name = "AggregatingVariable"

    def __init__(self, communicator: Communicator, servers: Servers, placement: Any) -> None:
        super().__init__(communicator)
        self._servers = servers
        self.placement = placement

    @property
    def servers(self) -> Servers:
        return self._servers

    def place(self, value: Any) -> Any:
        return self.mesh.replicate(value)

    def initial(self, spec: VariableSpec, value: Any) -> None:
        self._servers.create(spec, self.placement, value)

    def wrap(self, array: Any, scalar: bool) -> Mirrored:
        return Mirrored.from_whole(array, self.mesh)

    def unwrap(self, cell: Any) -> Any:
        return cell.whole

    def refresh(self, variables: Sequence[Variable]) -> None:
        self._servers.pull(variables)

    def read_copy(self, variable: Variable, local_index: int) -> Any:
        return current().frame.load(variable).select(local_index)

    def read(self, variable: Variable) -> Any:
        return current().frame.load(variable).to_plain()

    def held(self, variable: Variable) -> Any:
        """The value; an ON_READ total is divided, so that the replicas' parts add up to it."""
        cell = current().frame.load(variable)
        total = variable.aggregation is VariableAggregation.SUM
        if not total or variable.synchronization is not VariableSynchronization.ON_READ:
            return cell
        return spread_parts(cell.whole, self.mesh, divide=True)

    def check_method(self, variable: Variable, method: str) -> None:
        if current().replica is not None:
            check_scatter(variable, method)

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
        if isinstance(frame, EagerFrame):
            return operand if write.replaces else self.read(variable)
        new = variable._fitted(write.applied_to(frame.load(variable).whole, operand))
        frame.store(variable, self.wrap(new, False))
        return new


def _operand(variable: Variable, write: Write, value: Any) -> Any:
    """What is written, as arrays that are the same for all replicas."""
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
