"""The layout of ON_READ variables: each replica has its own part, and reading combines the parts.

It is for metrics and statistics: replicas update them without communication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import jax.numpy as jnp
from jax.sharding import Sharding

from replicax.contexts import current
from replicax.errors import VariableError
from replicax.topology import ReplicaMesh
from replicax.types import VariableAggregation
from replicax.values import Mirrored, PerReplica
from replicax.variables._aggregation import aggregate
from replicax.variables._layout import OnMesh, spread_parts, write_one_copy
from replicax.variables._spec import VariableSpec
from replicax.variables._writes import Write

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["OnePerReplica"]


@final
class OnePerReplica(OnMesh):
    """A different part on each replica."""

    type_name = "SyncOnReadVariable"
    differs = True
    has_copies = True
    is_split = True

    def place(self, value: Any) -> Any:
        return self.mesh.assemble([value] * len(self.mesh.local_replica_ids))

    def array_shape(self, spec: VariableSpec) -> tuple[int, ...]:
        count = self.mesh.num_replicas
        return (count * spec.shape[0], *spec.shape[1:]) if spec.shape else (count,)

    def sharding(self, mesh: ReplicaMesh) -> Sharding:
        return mesh.sharded

    def wrap(self, array: Any, scalar: bool) -> PerReplica:
        return PerReplica.from_global(array, self.mesh, scalar=scalar)

    def unwrap(self, cell: Any) -> Any:
        return cell.to_global(self.mesh)[0]

    def local_cell(self, value: Any) -> PerReplica:
        return PerReplica.from_local(value, self.mesh)

    def read_copy(self, variable: Variable, local_index: int) -> Any:
        return current().frame.load(variable).select(local_index)

    def read(self, variable: Variable) -> Any:
        _require_combinable(variable, "read")
        combined = aggregate(variable.aggregation, current().frame.load(variable), self._communicator)
        return combined.to_plain() if isinstance(combined, Mirrored) else combined

    def check_method(self, variable: Variable, method: str) -> None:
        raise NotImplementedError(
            f"{method} of the ON_READ variable {variable.name!r}: compute the new value and assign it, "
            "`v.assign(v.value.at[indices].add(rows))`."
        )

    def write_in_replica(self, variable: Variable, replica: Any, write: Write) -> Any:
        return write_one_copy(variable, replica.local_index, write)

    def write_copy(self, variable: Variable, local_index: int, write: Write) -> Any:
        return write_one_copy(variable, local_index, write)

    def write(self, variable: Variable, write: Write) -> Any:
        _check_write(variable, write)
        frame, operand = current().frame, write.operand
        operand = operand.to_plain() if isinstance(operand, Mirrored) else operand
        new: Any = None

        def compute() -> PerReplica:
            nonlocal new
            old = jnp.zeros(variable.shape, variable.dtype) if write.replaces else self.read(variable)
            new = variable._fitted(write.applied_to(old, operand))
            return spread_parts(new, self.mesh, divide=variable.aggregation is VariableAggregation.SUM)

        frame.modify(variable, compute)
        return new


def _check_write(variable: Variable, write: Write) -> None:
    if isinstance(write.operand, PerReplica):
        raise TypeError(
            f"{write.name} of the ON_READ variable {variable.name!r} got a PerReplica value outside of a "
            "replica function. Pass one value, or assign the replicas' values inside `strategy.run`."
        )
    _require_combinable(variable, write.name)
    if variable.aggregation is VariableAggregation.SUM and write.name != "assign":
        raise VariableError(
            f"{write.name} of the ON_READ variable {variable.name!r} outside of a replica function: with "
            "aggregation SUM it is not clear which replica's part should change. Use `assign` "
            "with the new total, or write it in a replica function."
        )


def _require_combinable(variable: Variable, what: str) -> None:
    if variable.aggregation is VariableAggregation.NONE:
        raise VariableError(
            f"{what} of the ON_READ variable {variable.name!r} outside of a replica function: its "
            "aggregation is NONE, so the replicas' parts can't be combined into one value. "
            "Create it with aggregation SUM, MEAN or ONLY_FIRST_REPLICA, or read the parts with "
            "`strategy.local_results(v)`."
        )
