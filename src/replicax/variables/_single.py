"""Variables with one copy: of the one replica there is, or central for all replicas."""

from __future__ import annotations

from typing import Any, final

import jax

from replicax._jax import is_tracer
from replicax.contexts import current
from replicax.errors import VariableError
from replicax.topology import ReplicaMesh
from replicax.values import IndexedSlices, Mirrored, PerReplica, free
from replicax.variables._aggregation import aggregate, check_one_way, check_scatter, require_aggregation
from replicax.variables._frames import current_frame
from replicax.variables._variable import Variable
from replicax.variables._writes import Apply

__all__ = ["AggregatingVariable", "PlainVariable"]


@final
class PlainVariable(Variable):
    """One copy for one replica: what `OneDeviceStrategy` makes, and what is made without a strategy."""

    __slots__ = ()

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The strategy's one device; None without a strategy."""
        return self._strategy.mesh if self._strategy.places_values else None

    @property
    def rests_on_mesh(self) -> bool:
        """Whether a strategy put it on its device."""
        return self._strategy.places_values

    @property
    def device(self) -> Any:
        """The device that it is on."""
        return self._strategy.mesh.local_devices[0]

    @property
    def copies(self) -> tuple[PlainVariable]:
        """The variable itself."""
        return (self,)

    def _wrap(self, array: Any) -> Mirrored:
        return Mirrored.from_whole(array)

    def _unwrap(self, cell: Any) -> Any:
        assert isinstance(cell, Mirrored)
        return cell.whole

    def _resting(self, value: Any) -> Any:
        return value if self.mesh is None else self.mesh.place(value, 0)

    def _read_copy(self, local_index: int) -> Any:
        cell = current_frame().load(self)
        assert isinstance(cell, Mirrored)
        return cell.whole

    def _read_all(self) -> Any:
        cell = current_frame().load(self)
        assert isinstance(cell, Mirrored)
        return cell.to_plain()

    def _write_in_replica(self, context: Any, apply: Apply, value: Any, what: str) -> Any:
        return self._write_all(apply, value, what)

    def _write_copy(self, local_index: int, apply: Apply, value: Any, what: str) -> Any:
        return self._write_all(apply, value, what)

    def _write_all(self, apply: Apply, value: Any, what: str) -> Any:
        old = current_frame().load(self)
        assert isinstance(old, Mirrored)
        new = self._fitted(apply(old.whole, single_operand(value)))
        if not is_tracer(new) and self.mesh is not None:
            new = self.mesh.place(new, 0)
        current_frame().store(self, self._wrap(new))
        return new


@final
class AggregatingVariable(Variable):
    """One copy on the parameter device, which all replicas read and write: central storage.

    What replicas write is combined first, as `aggregation` says, for every synchronization.

    >>> strategy = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], parameter_device="CPU:0")
    >>> with strategy.scope():
    ...     v = rx.Variable(1.0, aggregation=rx.VariableAggregation.MEAN)
    >>> strategy.run(lambda: v.assign_add(rx.get_replica_context().replica_id_in_sync_group * 4.0))
    PerReplica:{
      0: Array(3., dtype=float32),
      1: Array(3., dtype=float32)
    }
    >>> v
    <rx.Variable 'Variable:0' shape=() dtype=float32, numpy=3.0>
    """

    __slots__ = ()

    @property
    def mesh(self) -> ReplicaMesh:
        """The compute devices."""
        return self._strategy.mesh

    @property
    def rests_on_mesh(self) -> bool:
        """False: it is brought to the compute devices for each step."""
        return False

    @property
    def device(self) -> Any:
        """The parameter device."""
        return self._strategy.parameter_device

    @property
    def copies(self) -> tuple[AggregatingVariable]:
        """The variable itself."""
        return (self,)

    def _wrap(self, array: Any) -> Mirrored:
        return Mirrored.from_whole(array)

    def _unwrap(self, cell: Any) -> Any:
        assert isinstance(cell, Mirrored)
        return cell.whole

    def _resting(self, value: Any) -> Any:
        return jax.device_put(value, self.device)

    def _read_copy(self, local_index: int) -> Any:
        cell = current_frame().load(self)
        assert isinstance(cell, Mirrored)
        return cell.whole if is_tracer(cell.whole) else self.mesh.place(cell.whole, local_index)

    def _read_all(self) -> Any:
        cell = current_frame().load(self)
        assert isinstance(cell, Mirrored)
        return cell.to_plain()

    def _check_scatter(self, method: str, *, summable: bool) -> None:
        if current().replica is not None:
            check_scatter(self, method, summable=summable)

    def _write_in_replica(self, context: Any, apply: Apply, value: Any, what: str) -> Any:
        require_aggregation(self, what)
        return context.merge_call(self._write_merged, args=(apply, value, what))

    def _write_merged(self, strategy: Any, apply: Apply, value: Any, what: str) -> Any:
        check_one_way(self, what)
        combined = aggregate(self.aggregation, value, strategy.communicator)
        new = self._write_all(apply, combined, what)
        return Mirrored.from_whole(new if is_tracer(new) else self.mesh.replicate(new), self.mesh)

    def _write_copy(self, local_index: int, apply: Apply, value: Any, what: str) -> Any:
        return self._write_all(apply, value, what)

    def _write_all(self, apply: Apply, value: Any, what: str) -> Any:
        if isinstance(value, PerReplica):
            raise VariableError(
                f"{what} of the central variable {self.name!r} got a PerReplica value. Reduce it "
                "first (`strategy.reduce`), or write it in a replica function with an aggregation."
            )
        old = current_frame().load(self)
        assert isinstance(old, Mirrored)
        new = self._fitted(apply(old.whole, single_operand(value)))
        if not is_tracer(new):
            new = jax.device_put(new, self.device)
        current_frame().store(self, self._wrap(new))
        return new


def single_operand(value: Any) -> Any:
    """A value to write into a single copy, free to go to the device of that copy."""
    if isinstance(value, IndexedSlices):
        return IndexedSlices(single_operand(value.values), single_operand(value.indices), value.dense_shape)
    if isinstance(value, Mirrored):
        return value.to_plain()
    return free(value.components[0] if isinstance(value, PerReplica) else value)
