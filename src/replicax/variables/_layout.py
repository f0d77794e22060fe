"""A layout: where a variable's value is, and what reading and writing it means there.

A variable asks its layout everything that depends on how it is placed, and so do frames, compiled steps,
gradients, the optimizer and checkpoints. A new layout is one file with one class like these:

    Replicated      _replicated.py    one equal copy on each replica          cell: Mirrored
    OnePerReplica   _per_replica.py   a different part on each replica        cell: PerReplica
    OneDevice       _one_device.py    one copy, for one replica               cell: Mirrored
    Central         _one_device.py    one copy, which all replicas share      cell: Mirrored
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

from jax.sharding import Sharding

from replicax._jax import is_tracer
from replicax.collectives import Spread, spread
from replicax.contexts import current
from replicax.topology import REPLICA_AXIS, ReplicaMesh
from replicax.values import Mirrored, PerReplica, free
from replicax.variables._frames import Cell
from replicax.variables._spec import VariableSpec
from replicax.variables._writes import Write

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["Layout", "spread_parts", "write_one_copy"]


class Layout(abc.ABC):
    """Where the value of a variable is. One object serves all variables that a strategy places alike."""

    type_name: ClassVar[str]
    """What TensorFlow calls variables that are laid out so."""
    differs: ClassVar[bool] = False
    """Whether replicas hold different values."""
    has_copies: ClassVar[bool] = False
    """Whether each replica has a copy, or a part, of its own."""

    on_mesh: bool
    """Whether the array is placed on `mesh` between steps, too."""

    @property
    @abc.abstractmethod
    def mesh(self) -> ReplicaMesh | None:
        """The devices that compiled steps see the variable on; None if JAX chooses."""

    @property
    @abc.abstractmethod
    def device(self) -> Any:
        """The device of the (first) copy in this process."""

    # The array.

    @abc.abstractmethod
    def place(self, value: Any) -> Any:
        """The array of a variable whose value is `value`; it may share memory with that."""

    def array_shape(self, spec: VariableSpec) -> tuple[int, ...]:
        """The shape of the array."""
        return spec.shape

    def sharding(self, mesh: ReplicaMesh) -> Sharding:
        """How the array is placed on the devices of a compiled step."""
        return mesh.replicated

    @abc.abstractmethod
    def wrap(self, array: Any, scalar: bool) -> Cell:
        """The cell that an array, or its tracer, stands for; `scalar` if the variable's shape is ()."""

    @abc.abstractmethod
    def unwrap(self, cell: Any) -> Any:
        """The array of a cell."""

    def local_cell(self, value: Any) -> Cell:
        """The cell of a variable whose value in a replica that is being traced is `value`."""
        return Mirrored.from_whole(value, self.mesh)

    # Reading.

    @abc.abstractmethod
    def read_copy(self, variable: Variable, local_index: int) -> Any:
        """The value that one local replica sees."""

    @abc.abstractmethod
    def read(self, variable: Variable) -> Any:
        """The value outside of replicas, combined if the replicas' parts differ."""

    def held(self, variable: Variable) -> Any:
        """What each replica holds, as the distributed value that reductions take."""
        return current().frame.load(variable)

    # Writing.

    def check_method(self, variable: Variable, method: str) -> None:  # noqa: B027 - most allow all
        """Raise if a scatter method makes no sense for this layout."""

    @abc.abstractmethod
    def write_in_replica(self, variable: Variable, replica: Any, write: Write) -> Any:
        """Write in a replica function; returns the replica's new value."""

    @abc.abstractmethod
    def write_copy(self, variable: Variable, local_index: int, write: Write) -> Any:
        """Write one copy, inside `extended.update`; returns its new value."""

    @abc.abstractmethod
    def write(self, variable: Variable, write: Write) -> Any:
        """Write outside of replicas; returns the new value."""


def write_one_copy(variable: Variable, local_index: int, write: Write) -> Any:
    """Write a local replica's copy of a variable that has one for each; returns the new value."""
    frame, mesh = current().frame, variable.mesh
    assert mesh is not None
    operand = write.operand
    if isinstance(operand, Mirrored | PerReplica):
        operand = operand.select(local_index)
    with frame.updating(variable):
        cell = frame.load(variable)
        new = variable._fitted(write.applied_to(cell.select(local_index), operand))
        if not is_tracer(new):
            new = mesh.place(new, local_index)
        frame.store(variable, cell.replaced(local_index, new))
    return new


def spread_parts(value: Any, mesh: ReplicaMesh, *, divide: bool) -> PerReplica:
    """A part of `value` for each replica: all of it or, with `divide`, shares that add up to it."""
    recipe = Spread(divide)
    if current().frame.is_one_replica:
        return PerReplica.from_local(recipe(REPLICA_AXIS, value)[0], mesh)
    whole = value if is_tracer(value) else mesh.replicate(free(value))
    return spread(recipe, Mirrored.from_whole(whole, mesh), mesh)
