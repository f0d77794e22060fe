"""The layouts of variables with one copy: for a single replica, or shared by all replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import jax

from replicax._jax import is_tracer
from replicax.collectives import Communicator
from replicax.contexts import current
from replicax.errors import VariableError
from replicax.topology import ReplicaMesh
from replicax.values import IndexedSlices, Mirrored, PerReplica, free
from replicax.variables._aggregation import write_combined
from replicax.variables._layout import Layout
from replicax.variables._shared import SharedValue
from replicax.variables._writes import Write

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["Central", "OneDevice"]


@final
class OneDevice(Layout):
    """One copy, for a strategy of one replica.

    Args:
        device: the variable's device; None if JAX chooses.
        mesh: the strategy's mesh; None leaves values wherever JAX places them.
    """

    type_name = "Variable"

    def __init__(self, device: Any, mesh: ReplicaMesh | None) -> None:
        self.on_mesh = mesh is not None
        self._device, self._mesh = device, mesh

    @property
    def mesh(self) -> ReplicaMesh | None:
        return self._mesh

    @property
    def device(self) -> Any:
        return self._device

    def place(self, value: Any) -> Any:
        return value if self._mesh is None or is_tracer(value) else self._mesh.place(value, 0)

    def wrap(self, array: Any, scalar: bool) -> Mirrored:
        return Mirrored.from_whole(array)

    def unwrap(self, cell: Any) -> Any:
        return cell.whole

    def read_copy(self, variable: Variable, local_index: int) -> Any:
        return current().frame.load(variable).whole

    def read(self, variable: Variable) -> Any:
        return current().frame.load(variable).to_plain()

    def write_in_replica(self, variable: Variable, replica: Any, write: Write) -> Any:
        return self.write(variable, write)

    def write_copy(self, variable: Variable, local_index: int, write: Write) -> Any:
        return self.write(variable, write)

    def write(self, variable: Variable, write: Write) -> Any:
        return _write_single(self, variable, write)


@final
class Central(SharedValue):
    """One copy on the parameter device. Compiled steps copy the value to their devices and back."""

    on_mesh = False

    def __init__(self, communicator: Communicator, device: Any) -> None:
        super().__init__(communicator)
        self._device = device

    @property
    def device(self) -> Any:
        return self._device

    def place(self, value: Any) -> Any:
        return value if is_tracer(value) else jax.device_put(value, self._device)

    def wrap(self, array: Any, scalar: bool) -> Mirrored:
        return Mirrored.from_whole(array)

    def read_copy(self, variable: Variable, local_index: int) -> Any:
        whole = current().frame.load(variable).whole
        return whole if is_tracer(whole) else self.mesh.place(whole, local_index)

    def write_in_replica(self, variable: Variable, replica: Any, write: Write) -> Any:
        return write_combined(variable, replica, write)

    def write_copy(self, variable: Variable, local_index: int, write: Write) -> Any:
        return _write_single(self, variable, write)

    def write(self, variable: Variable, write: Write) -> Any:
        if isinstance(write.operand, PerReplica):
            raise VariableError(
                f"{write.name} of the central variable {variable.name!r} got a PerReplica value. Reduce it "
                "first (`strategy.reduce`), or write it in a replica function with an aggregation."
            )
        return _write_single(self, variable, write)


def _write_single(layout: OneDevice | Central, variable: Variable, write: Write) -> Any:
    frame = current().frame

    def compute() -> Mirrored:
        old = frame.load(variable).whole
        new = layout.place(variable._fitted(write.applied_to(old, _single_operand(write.operand))))
        return layout.wrap(new, False)

    return frame.modify(variable, compute).whole


def _single_operand(value: Any) -> Any:
    """The value to write, uncommitted, so that JAX may move it to the copy's device."""
    if isinstance(value, IndexedSlices):
        values, indices = _single_operand(value.values), _single_operand(value.indices)
        return IndexedSlices(values, indices, value.dense_shape)
    if isinstance(value, Mirrored):
        return value.to_plain()
    return free(value.components[0] if isinstance(value, PerReplica) else value)
