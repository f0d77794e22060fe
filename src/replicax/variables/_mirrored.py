"""A variable with one equal copy on each replica."""

from __future__ import annotations

from typing import Any, final

from replicax._jax import is_tracer
from replicax.errors import VariableError
from replicax.topology import ReplicaMesh
from replicax.values import DistributedValues, IndexedSlices, Mirrored, PerReplica
from replicax.variables._aggregation import aggregate, check_one_way, check_scatter, require_aggregation
from replicax.variables._copy import VariableCopy
from replicax.variables._frames import current_frame
from replicax.variables._variable import Variable, write_one_copy
from replicax.variables._writes import Apply

__all__ = ["MirroredVariable"]


@final
class MirroredVariable(Variable, DistributedValues):
    """One equal copy on each replica: what a `MirroredStrategy` makes.

    The copies are equal by construction: what replicas write is combined first, as `aggregation` says.

    >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    ...     v = rx.Variable(1.0)
    >>> isinstance(v, rx.MirroredVariable), isinstance(v, rx.Variable)
    (True, True)
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
        """The device of the first local copy."""
        return self.mesh.local_devices[0]

    @property
    def copies(self) -> tuple[VariableCopy, ...]:
        """The copies on this process's replicas."""
        return tuple(VariableCopy(self, i) for i in range(len(self.mesh.local_replica_ids)))

    @property
    def values(self) -> tuple[VariableCopy, ...]:
        """The copies on this process's replicas."""
        return self.copies

    def select(self, local_index: int) -> VariableCopy:
        """The copy on one local replica."""
        return VariableCopy(self, local_index)

    def _wrap(self, array: Any) -> Mirrored:
        return Mirrored.from_whole(array, self.mesh)

    def _unwrap(self, cell: Any) -> Any:
        return cell.whole

    def _resting(self, value: Any) -> Any:
        return self.mesh.replicate(value)

    def _read_copy(self, local_index: int) -> Any:
        return current_frame().load(self).select(local_index)

    def _read_all(self) -> Any:
        cell = current_frame().load(self)
        assert isinstance(cell, Mirrored)
        return cell.to_plain()

    def _check_scatter(self, method: str, *, summable: bool) -> None:
        check_scatter(self, method, summable=summable)

    def _write_in_replica(self, context: Any, apply: Apply, value: Any, what: str) -> Any:
        require_aggregation(self, what)
        return context.merge_call(self._write_merged, args=(apply, value, what))

    def _write_merged(self, strategy: Any, apply: Apply, value: Any, what: str) -> Any:
        check_one_way(self, what)
        combined = aggregate(self.aggregation, value, strategy.communicator)
        return self._write_all(apply, combined, what)

    def _write_all(self, apply: Apply, value: Any, what: str) -> Mirrored:
        old = current_frame().load(self)
        assert isinstance(old, Mirrored)
        new = self._fitted(apply(old.whole, self._operand(value, what)))
        cell = self._wrap(new if is_tracer(new) else self.mesh.replicate(new))
        current_frame().store(self, cell)
        return cell

    def _operand(self, value: Any, what: str) -> Any:
        if isinstance(value, PerReplica):
            raise VariableError(
                f"{what} of the mirrored variable {self.name!r} got a PerReplica value: its copies "
                "would differ. Reduce the value first (`strategy.reduce` or `extended.reduce_to`), or "
                "write it in a replica function with an aggregation."
            )
        if isinstance(value, IndexedSlices):
            values, indices = self._operand(value.values, what), self._operand(value.indices, what)
            return IndexedSlices(values, indices, value.dense_shape)
        return value.whole if isinstance(value, Mirrored) else value

    def _write_copy(self, local_index: int, apply: Apply, value: Any, what: str) -> Any:
        if isinstance(value, PerReplica):
            value = self._operand(value, what)
        return write_one_copy(self, local_index, apply, value)

    def __repr__(self) -> str:
        lines = ",\n".join(f"  {i}: {copy!r}" for i, copy in enumerate(self.copies))
        return f"MirroredVariable:{{\n{lines}\n}}"
