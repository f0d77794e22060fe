"""A layout: where a variable's value is placed, and what reading and writing it means there.

Everything that depends on how a variable is placed is a method of its layout, which frames, compiled steps,
gradients, the optimizer and checkpoints call. A new layout is one file with one class, like these:

    Replicated      _replicated.py    one equal copy on each replica          cell: Mirrored
    OnePerReplica   _per_replica.py   a different part on each replica        cell: PerReplica
    OneDevice       _one_device.py    one copy, for one replica               cell: Mirrored
    Central         _one_device.py    one copy, shared by all replicas        cell: Mirrored
    Sharded         _sharded.py       one value, sharded over the replicas    cell: Mirrored
    Partitioned     _partitioned.py   a copy on each replica, sharded over    cell: Mirrored
                                      the replica's devices
    OnServers       _on_servers.py    on parameter servers; a copy here       cell: Mirrored
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
from jax.sharding import Sharding

from replicax._jax import is_tracer
from replicax.collectives import Communicator, Spread, spread
from replicax.contexts import current
from replicax.topology import ReplicaMesh
from replicax.values import Mirrored, PerReplica, copied, free
from replicax.variables._frames import Cell
from replicax.variables._spec import VariableSpec
from replicax.variables._writes import Write

if TYPE_CHECKING:
    from replicax.variables._divided import Divided
    from replicax.variables._servers import Servers
    from replicax.variables._sharded import Shard
    from replicax.variables._variable import Variable

__all__ = ["MAX_SPLIT_AXES", "Layout", "OnMesh", "spread_parts", "write_one_copy"]

MAX_SPLIT_AXES = 8
"""The array of a split layout is split along one of its first `MAX_SPLIT_AXES` axes."""


class Layout(abc.ABC):
    """Where the value of a variable is placed. Variables that are placed alike share one layout object."""

    type_name: ClassVar[str]
    """TensorFlow's name for variables with this layout."""
    differs: ClassVar[bool] = False
    """Whether replicas hold different values."""
    has_copies: ClassVar[bool] = False
    """Whether each replica has its own copy or part."""

    is_split: ClassVar[bool] = False
    """Whether a replica's devices hold only a part of the array, which is split along `split_axis`."""
    split_axis: int = 0

    on_mesh: bool
    """Whether the array stays on `mesh` between steps."""

    @property
    def has_value_on_mesh(self) -> bool:
        """Whether the array on `mesh` is the value, not a different part for each replica."""
        return self.on_mesh and not self.differs

    @property
    @abc.abstractmethod
    def mesh(self) -> ReplicaMesh | None:
        """The variable's devices in compiled steps; None if JAX chooses."""

    @property
    @abc.abstractmethod
    def device(self) -> Any:
        """The device of this process's (first) copy."""

    # The array in the store.

    @abc.abstractmethod
    def place(self, value: Any) -> Any:
        """The array for a variable with this value; it may share memory with `value`."""

    def padded(self, value: Any) -> Any:
        """The array for a value, before it is placed: padded if it can't be split evenly."""
        return value

    def initial(self, spec: VariableSpec, value: Any) -> Any:
        """The array of a new variable; None if this process has none yet."""
        return copied(self.place(value))  # steps donate it

    def array_shape(self, spec: VariableSpec) -> tuple[int, ...]:
        """The shape of the array."""
        return spec.shape

    def sharding(self, mesh: ReplicaMesh) -> Sharding:
        """How the array is placed on the devices of a compiled step."""
        return mesh.replicated

    @abc.abstractmethod
    def wrap(self, array: Any, scalar: bool) -> Cell:
        """The cell for an array or its tracer; `scalar` if the variable's shape is ()."""

    @abc.abstractmethod
    def unwrap(self, cell: Any) -> Any:
        """The array of a cell."""

    # In a replica that is being traced.

    def replica_cell(self, cell: Any) -> Any:
        """A replica's cell, from the step's cell; for layouts that are not split."""
        return cell

    def local_cell(self, value: Any) -> Cell:
        """The cell of a variable whose value in this replica is `value`."""
        return Mirrored.from_whole(value, self.mesh)

    def part_shape(self, spec: VariableSpec) -> tuple[int, ...]:
        """The shape of a replica's part of the array of a split layout."""
        return spec.shape

    def part_cell(self, part: Any, spec: VariableSpec) -> Any:
        """The cell of a replica that holds this part of the array."""
        return self.local_cell(part.reshape(spec.shape))

    def part(self, cell: Any) -> Any:
        """The replica's part of the array."""
        value = cell.select(0)
        return value if value.ndim else value.reshape((1,))

    def shard(self, cell: Any) -> Shard | None:
        """The cell if it is a shard, which is gathered when it is read; None for other cells."""
        return None

    @property
    def of_gradients(self) -> Divided | None:
        """The layout in which gradients are reduced; None if each device gets all of them."""
        return None

    # Reading.

    @property
    def servers(self) -> Servers | None:
        """The servers that hold the value; None if it is in this process."""
        return None

    def refresh(self, variables: Sequence[Variable]) -> None:  # noqa: B027 - most values are here
        """Fetch the current values of variables with this layout."""

    @abc.abstractmethod
    def read_copy(self, variable: Variable, local_index: int) -> Any:
        """The value that one local replica sees."""

    @abc.abstractmethod
    def read(self, variable: Variable) -> Any:
        """The value outside of replicas, combined if the replicas' parts differ."""

    def look_up(self, variable: Variable, indices: Any) -> Any:
        """The rows at `indices`."""
        return jnp.take(variable.read_value(), indices, axis=0)

    def held(self, variable: Variable) -> Any:
        """What each replica holds, as a distributed value that can be reduced."""
        return current().frame.load(variable)

    # Writing.

    def check_method(self, variable: Variable, method: str) -> None:  # noqa: B027 - most allow all
        """Raise if this layout does not support a scatter method."""

    @abc.abstractmethod
    def write_in_replica(self, variable: Variable, replica: Any, write: Write) -> Any:
        """Write in a replica function; returns the replica's new value."""

    @abc.abstractmethod
    def write_copy(self, variable: Variable, local_index: int, write: Write) -> Any:
        """Write one copy, inside `extended.update`; returns its new value."""

    @abc.abstractmethod
    def write(self, variable: Variable, write: Write) -> Any:
        """Write outside of replicas; returns the new value."""


class OnMesh(Layout):
    """The base of layouts that place a variable on all of its strategy's devices."""

    on_mesh = True

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    @property
    def mesh(self) -> ReplicaMesh:
        return self._communicator.mesh

    @property
    def device(self) -> Any:
        return self.mesh.local_devices[0]


def write_one_copy(variable: Variable, local_index: int, write: Write) -> Any:
    """Write one local replica's copy of a variable; returns the new value."""
    frame, mesh = current().frame, variable.mesh
    assert mesh is not None
    operand = write.operand
    if isinstance(operand, Mirrored | PerReplica):
        operand = operand.select(local_index)
    new: Any = None

    def compute() -> Cell:
        nonlocal new
        cell = frame.load(variable)
        new = variable._fitted(write.applied_to(cell.select(local_index), operand))
        if not is_tracer(new):
            new = mesh.place(new, local_index)
        return cell.replaced(local_index, new)

    frame.modify(variable, compute)
    return new


def spread_parts(value: Any, mesh: ReplicaMesh, *, divide: bool) -> PerReplica:
    """A part of `value` for each replica: all of it or, with `divide`, shares that add up to it."""
    recipe = Spread(divide)
    if current().frame.is_one_replica:
        return PerReplica.from_local(recipe(mesh.axis_name, value)[0], mesh)
    whole = value if is_tracer(value) else mesh.replicate(free(value))
    return spread(recipe, Mirrored.from_whole(whole, mesh), mesh)
