"""A variable of which each replica has its own part, combined when it is read."""

from __future__ import annotations

from typing import Any, final

import jax.numpy as jnp

from replicax._jax import is_tracer
from replicax.collectives import Spread
from replicax.errors import ContextError, VariableError
from replicax.topology import ReplicaMesh
from replicax.types import VariableAggregation
from replicax.values import DistributedValues, Mirrored, PerReplica
from replicax.variables._aggregation import aggregate
from replicax.variables._copy import VariableCopy
from replicax.variables._frames import current_frame
from replicax.variables._variable import Variable, write_one_copy
from replicax.variables._writes import Apply

__all__ = ["SyncOnReadVariable"]


@final
class SyncOnReadVariable(Variable, DistributedValues):
    """A part on each replica: for metrics and statistics that replicas update without communication.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     total = rx.Variable(0, synchronization=rx.VariableSynchronization.ON_READ,
    ...                         aggregation=rx.VariableAggregation.SUM)
    >>> strategy.run(lambda: total.assign_add(rx.get_replica_context().replica_id_in_sync_group + 1))
    PerReplica:{
      0: Array(1, dtype=int32),
      1: Array(2, dtype=int32)
    }
    >>> total.read_value()
    Array(3, dtype=int32)
    """

    __slots__ = ()

    @property
    def mesh(self) -> ReplicaMesh:
        """The strategy's devices."""
        return self._strategy.mesh

    @property
    def rests_on_mesh(self) -> bool:
        """True."""
        return True

    @property
    def device(self) -> Any:
        """The device of the first local part."""
        return self.mesh.local_devices[0]

    @property
    def copies(self) -> tuple[VariableCopy, ...]:
        """The parts on this process's replicas."""
        return tuple(VariableCopy(self, i) for i in range(len(self.mesh.local_replica_ids)))

    @property
    def values(self) -> tuple[VariableCopy, ...]:
        """The parts on this process's replicas."""
        return self.copies

    def select(self, local_index: int) -> VariableCopy:
        """The part on one local replica."""
        return VariableCopy(self, local_index)

    def _wrap(self, array: Any) -> PerReplica:
        return PerReplica.from_global(array, self.mesh, scalar=self.ndim == 0)

    def _unwrap(self, cell: Any) -> Any:
        assert isinstance(cell, PerReplica)
        return cell.to_global(self.mesh)[0]

    def _resting(self, value: Any) -> Any:
        raise ContextError(f"The ON_READ variable {self.name!r} was written in a step of another strategy.")

    def _read_copy(self, local_index: int) -> Any:
        return current_frame().load(self).select(local_index)

    def _read_all(self) -> Any:
        self._require_combinable("read")
        cell = current_frame().load(self)
        combined = aggregate(self.aggregation, cell, self._strategy.communicator)
        return combined.to_plain() if isinstance(combined, Mirrored) else combined

    def _check_scatter(self, method: str, *, summable: bool) -> None:
        raise NotImplementedError(
            f"{method} of the ON_READ variable {self.name!r}: compute the new value and assign it, "
            "`v.assign(v.value.at[indices].add(rows))`."
        )

    def _write_in_replica(self, context: Any, apply: Apply, value: Any, what: str) -> Any:
        return write_one_copy(self, context.local_index, apply, value)

    def _write_copy(self, local_index: int, apply: Apply, value: Any, what: str) -> Any:
        return write_one_copy(self, local_index, apply, value)

    def _write_all(self, apply: Apply, value: Any, what: str) -> Any:
        if isinstance(value, PerReplica):
            raise TypeError(
                f"{what} of the ON_READ variable {self.name!r} got a PerReplica value outside of a "
                "replica function. Pass one value, or assign the replicas' values inside "
                "`strategy.run`."
            )
        self._require_combinable(what)
        adds_up = self.aggregation is VariableAggregation.SUM
        if adds_up and what != "assign":
            raise VariableError(
                f"{what} of the ON_READ variable {self.name!r} outside of a replica function: with "
                "aggregation SUM it is not clear which replica's part should change. Use `assign` "
                "with the new total, or write it in a replica function."
            )
        operand = value.to_plain() if isinstance(value, Mirrored) else value
        old = jnp.zeros(self.shape, self.dtype) if what == "assign" else self._read_all()
        new = self._fitted(apply(old, operand))
        whole = Mirrored.from_whole(new if is_tracer(new) else self.mesh.replicate(new), self.mesh)
        recipe = Spread(divide=adds_up)
        current_frame().store(self, current_frame().spread(recipe, whole, self.mesh))
        return new

    def _require_combinable(self, what: str) -> None:
        if self.aggregation is VariableAggregation.NONE:
            raise VariableError(
                f"{what} of the ON_READ variable {self.name!r} outside of a replica function: its "
                "aggregation is NONE, so the replicas' parts don't make one value. Make it with "
                "aggregation SUM, MEAN or ONLY_FIRST_REPLICA, or look at the parts with "
                "`strategy.local_results(v)`."
            )

    def __repr__(self) -> str:
        lines = ",\n".join(f"  {i}: {copy!r}" for i, copy in enumerate(self.copies))
        return f"SyncOnReadVariable:{{\n{lines}\n}}"
