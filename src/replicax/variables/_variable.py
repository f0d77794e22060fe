"""`Variable`: state that outlives a step, with one meaning for every strategy.

`rx.Variable(...)` asks the strategy in scope which kind to make:

    MirroredVariable      one equal copy on each replica             cell: Mirrored
    SyncOnReadVariable    a different part on each replica           cell: PerReplica
    AggregatingVariable   one copy on a parameter device             cell: Mirrored
    PlainVariable         one copy, one replica                      cell: Mirrored

This class holds what all kinds share: the array that is the variable's state, and the reading and
writing API, which looks at the context and hands the work to one of four methods of the kind.

State has two forms. `_array` is the global array that compiled steps take and return; `_cell` is the
distributed value that eager code works with. At least one is there, unless `_holder`, a compiled step that
runs again and again, holds the array. `_loose` says that `_array` is missing or that somebody else may have
it, so that a compiled step must not take it over as it is.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_tracer
from replicax.contexts import current, has_strategy
from replicax.errors import ContextError, TracingError, VariableError
from replicax.topology import ReplicaMesh
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.values import IndexedSlices, Mirrored, PerReplica, forward_operators, is_number
from replicax.variables._frames import Cell, RecordingFrame, current_frame
from replicax.variables._readable import Readable, describe
from replicax.variables._spec import VariableSpec
from replicax.variables._state import Holder, state_version, waiting_for_steps
from replicax.variables._writes import SCATTER, SUMMABLE_SCATTER, Apply, add, replace, subtract

__all__ = ["Variable", "write_one_copy"]


class _MadeByStrategy(abc.ABCMeta):
    """Lets `Variable(...)` return the kind that the strategy in scope makes."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Variable:
            return current().strategy.create_variable(*args, **kwargs)
        return super().__call__(*args, **kwargs)


@final
class _Reference:
    """A hashable stand-in for a variable, equal for the same variable."""

    __slots__ = ("variable",)

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def deref(self) -> Variable:
        """The variable."""
        return self.variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and other.variable is self.variable

    def __hash__(self) -> int:
        return id(self.variable)


@forward_operators
class Variable(Readable, metaclass=_MadeByStrategy):
    """State that lives where the strategy in scope puts it.

    It computes like the array that it holds: `v + 1`, `v[0]`, `jnp.sum(v)`; in a replica function that
    is the replica's own copy. (`jax.lax` takes arrays only: `jax.lax.add(v.value, 1.0)`.) Write it with
    `assign`, `assign_add` and their like.

    `jax.tree` functions see the array, so `jax.grad(loss)({"w": v})` differentiates with respect to the
    value. To go through variables themselves, use lists, or pass
    `is_leaf=lambda x: isinstance(x, rx.Variable)`.

    Args:
        initial_value: an array, anything that converts to one, or a function without arguments that
            returns one and is called once.
        trainable: whether optimizers should update it; by default True, except ON_READ.
        name: shown in messages and checkpoints.
        dtype: the dtype; by default that of the initial value.
        synchronization: when copies are kept equal. AUTO and ON_WRITE: always (a mirrored variable).
            ON_READ: replicas write their own part without communication, and reading outside of
            replicas combines the parts.
        aggregation: how the replicas' values combine when a replica function writes the variable
            (ON_WRITE) or when it is read (ON_READ).
        shape: if given, the shape that the initial value must have.
        constraint: a function that optimizers apply after an update; `assign` does not.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     v = rx.Variable(1.0, name="v", aggregation=rx.VariableAggregation.SUM)
    >>> v
    MirroredVariable:{
      0: <rx.Variable 'v:0' shape=() dtype=float32, numpy=1.0>,
      1: <rx.Variable 'v/replica_1:0' shape=() dtype=float32, numpy=1.0>
    }
    >>> def replica_fn():
    ...     v.assign_add(rx.get_replica_context().replica_id_in_sync_group + 1.0)
    >>> strategy.run(replica_fn)
    >>> v + 0.5
    Array(4.5, dtype=float32)
    """

    __slots__ = ("__weakref__", "_array", "_cell", "_holder", "_loose", "_spec", "_strategy", "was_written")

    # NumPy must leave the arithmetic to us: `np.float32(1) * v`.
    __array_priority__ = 100

    def __init__(self, spec: VariableSpec, strategy: Any, array: jax.Array) -> None:
        """Made by `strategy.create_variable`; use `rx.Variable(...)`."""
        self._spec = spec
        self._strategy = strategy
        self._array: jax.Array | None = array
        self._cell: Cell | None = None
        self._holder: Holder | None = None
        self._loose = False
        self.was_written = False
        """Whether it may have another value than its first."""

    # What it is.

    @property
    def name(self) -> str:
        """The name, with TensorFlow's suffix ":0"."""
        return f"{self._spec.name}:0"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self._spec.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the value."""
        return self._spec.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape))

    @property
    def trainable(self) -> bool:
        """Whether optimizers should update it."""
        return self._spec.trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """When the copies are kept equal."""
        return self._spec.synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """How replicas' values combine."""
        return self._spec.aggregation

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        """What optimizers apply after an update."""
        return self._spec.constraint

    @property
    def distribute_strategy(self) -> Any:
        """The strategy in whose scope it was made."""
        return self._strategy

    @property
    def made_at(self) -> str:
        """The line of the user's program that made it."""
        return self._spec.made_at

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        """A new variable of the same strategy with the same value."""
        array = self._unwrap(current_frame().load(self))
        if is_tracer(array):
            raise TracingError(
                f"The variable {self.name!r} is copied while a step is traced, so that the copy would have "
                "no value afterwards. Copy it outside of the step, or take its value, `v.read_value()`."
            )
        array = jnp.copy(array)
        memo[id(self)] = copied = type(self)(self._spec, self._strategy, array)
        return copied

    def __copy__(self) -> Variable:
        """Likewise: a variable shares its state with no other."""
        return self.__deepcopy__({})

    def ref(self) -> _Reference:
        """Something hashable that stands for this variable, for sets and dict keys."""
        return _Reference(self)

    def is_initialized(self) -> bool:
        """True: a variable has its value from the start."""
        return True

    @property
    @abc.abstractmethod
    def copies(self) -> tuple[Any, ...]:
        """The copies of this process: what `strategy.local_results` returns for it."""

    def __repr__(self) -> str:
        return describe(self.name, self)

    # State. Only frames and compiled steps call these.

    def _get_cell(self) -> Cell:
        cell = self._cell
        if cell is None:
            with waiting_for_steps(self.name):
                self._cell = cell = self._wrap(self._reclaim())
                self._loose = True
                state_version.count += 1
        return cell

    def _set_cell(self, cell: Cell) -> None:
        with waiting_for_steps(self.name):
            self._reclaim()
            self._cell, self._array, self._loose = cell, None, True
            self.was_written = True
            state_version.count += 1

    def _reclaim(self) -> jax.Array | None:
        """The array, taken back from the step that holds it."""
        if self._holder is not None:
            self._holder.give_back()
        return self._array

    def _settle(self, *, for_writing: bool) -> None:
        """Make `_array` the state; one that nobody else holds if a step will write into it."""
        array = self._reclaim()
        if array is None:
            array = self._unwrap(self._cell)
        self._array = array
        if for_writing and self._loose:
            self._array, self._cell, self._loose = jnp.copy(array), None, False

    @abc.abstractmethod
    def _wrap(self, array: Any) -> Cell:
        """The cell that a global array (or its tracer) stands for."""

    @abc.abstractmethod
    def _unwrap(self, cell: Any) -> Any:
        """The global array of a cell, where this variable's state rests."""

    @abc.abstractmethod
    def _resting(self, value: jax.Array) -> jax.Array:
        """A plain array with the variable's value, put where its state rests."""

    @property
    @abc.abstractmethod
    def mesh(self) -> ReplicaMesh | None:
        """The mesh that compiled steps see it on; None for the default strategy's variables."""

    @property
    @abc.abstractmethod
    def device(self) -> Any:
        """The device of the (first) copy in this process."""

    @property
    @abc.abstractmethod
    def rests_on_mesh(self) -> bool:
        """Whether its state lies on `mesh` between steps, or is brought there for each."""

    # Reading.

    def read_value(self) -> jax.Array:
        """The value here: the replica's own copy in a replica function, the combined value outside.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable([1.0, 2.0])
        >>> v.read_value()
        Array([1., 2.], dtype=float32)
        """
        here = current()
        index = here.local_index if here.strategy is self._strategy else None
        return self._read_all() if index is None else self._read_copy(index)

    @abc.abstractmethod
    def _read_copy(self, local_index: int) -> Any:
        """The copy of one local replica."""

    @abc.abstractmethod
    def _read_all(self) -> Any:
        """The value outside of replicas."""

    # Writing.

    def assign(self, value: Any, read_value: bool = True) -> Any:
        """Replace the value.

        In a replica function the replicas' values are combined as `aggregation` says; an ON_READ
        variable takes each replica's own. Outside, all copies take `value`; an ON_READ variable with
        aggregation SUM takes parts of it that add up to it.

        Args:
            value: the new value, or something that broadcasts to its shape.
            read_value: return the new value; otherwise None.

        >>> v = rx.Variable([1.0, 2.0])
        >>> v.assign([3.0, 4.0])
        Array([3., 4.], dtype=float32)
        """
        return self._write(replace, value, read_value, "assign")

    def assign_add(self, value: Any, read_value: bool = True) -> Any:
        """Add `value`, combined over the replicas like in `assign`.

        >>> v = rx.Variable(1.0)
        >>> v.assign_add(2.0)
        Array(3., dtype=float32)
        """
        return self._write(add, value, read_value, "assign_add")

    def assign_sub(self, value: Any, read_value: bool = True) -> Any:
        """Subtract `value`, combined over the replicas like in `assign`.

        >>> v = rx.Variable(1.0)
        >>> v.assign_sub(2.0)
        Array(-1., dtype=float32)
        """
        return self._write(subtract, value, read_value, "assign_sub")

    def scatter_add(self, sparse_delta: IndexedSlices) -> Any:
        """Add to some rows; in a replica function, to the rows of all replicas.

        >>> v = rx.Variable([1.0, 2.0, 3.0])
        >>> v.scatter_add(rx.IndexedSlices(jnp.array([10.0]), jnp.array([1])))
        Array([ 1., 12.,  3.], dtype=float32)
        """
        return self._write_rows("scatter_add", sparse_delta)

    def scatter_sub(self, sparse_delta: IndexedSlices) -> Any:
        """Subtract from some rows."""
        return self._write_rows("scatter_sub", sparse_delta)

    def scatter_mul(self, sparse_delta: IndexedSlices) -> Any:
        """Multiply some rows."""
        return self._write_rows("scatter_mul", sparse_delta)

    def scatter_div(self, sparse_delta: IndexedSlices) -> Any:
        """Divide some rows."""
        return self._write_rows("scatter_div", sparse_delta)

    def scatter_min(self, sparse_delta: IndexedSlices) -> Any:
        """Take the smaller of old and new in some rows."""
        return self._write_rows("scatter_min", sparse_delta)

    def scatter_max(self, sparse_delta: IndexedSlices) -> Any:
        """Take the larger of old and new in some rows."""
        return self._write_rows("scatter_max", sparse_delta)

    def scatter_update(self, sparse_delta: IndexedSlices) -> Any:
        """Replace some rows."""
        return self._write_rows("scatter_update", sparse_delta)

    def _write_rows(self, method: str, rows: Any) -> Any:
        if not isinstance(rows, IndexedSlices):
            raise TypeError(f"{method} takes an rx.IndexedSlices, got {type(rows).__name__}.")
        self._check_scatter(method, summable=method in SUMMABLE_SCATTER)
        return self._write(SCATTER[method], rows, True, method)

    def _check_scatter(self, method: str, *, summable: bool) -> None:
        """Refuse scatter methods that this kind can't combine over replicas."""

    def _write(self, apply: Apply, value: Any, read_value: bool, what: str) -> Any:
        frame = current_frame()
        if isinstance(frame, RecordingFrame):
            result = frame.record(self, apply, value, what)
            return result if read_value else None
        here = current()
        own = here.strategy is self._strategy
        if own and here.replica is not None:
            result = self._write_in_replica(here.replica, apply, self._checked(value, what), what)
        elif own and here.update_replica_id is not None:
            value = self._checked(value, what)
            result = self._write_copy(here.update_index, apply, value, what)
        elif here.replica is not None and has_strategy():
            raise ContextError(self._written_by_stranger(here.strategy, what))
        else:
            result = self._write_all(apply, self._checked(value, what), what)
        return result if read_value else None

    def _written_by_stranger(self, strategy: Any, what: str) -> str:
        return (
            f"{what} of the variable {self.name!r} in a replica function of {strategy!r}, but the "
            f"variable was made outside of that strategy's scope (at {self.made_at}). Every replica "
            "would write it. Make it inside `with strategy.scope():`, or write it outside of the "
            "replica function."
        )

    @abc.abstractmethod
    def _write_in_replica(self, context: Any, apply: Apply, value: Any, what: str) -> Any:
        """Write from a replica function; returns the replica's new value."""

    @abc.abstractmethod
    def _write_all(self, apply: Apply, value: Any, what: str) -> Any:
        """Write outside of replicas; returns the new value."""

    @abc.abstractmethod
    def _write_copy(self, local_index: int, apply: Apply, value: Any, what: str) -> Any:
        """Write one copy, inside `extended.update`; returns its new value."""

    def _checked(self, value: Any, what: str) -> Any:
        """`value` as something to write: of a variable its value; dtype and shape must fit."""
        if isinstance(value, Readable):
            value = value.held() if current().replica is None else value.read_value()
        if isinstance(value, IndexedSlices):
            self._spec.check_rows(value, what)
            return IndexedSlices(_own(value.values), _own(value.indices), value.dense_shape)
        if isinstance(value, PerReplica | Mirrored):
            return value
        if not is_number(value):
            value = self._spec.from_python(value, what)
        self._spec.check_fits(value, what)
        return _own(value)

    def _fitted(self, value: Any) -> Any:
        """A computed new value in the variable's dtype and shape."""
        value = jnp.asarray(value, self.dtype)
        if value.shape != self.shape:
            raise VariableError(
                f"The variable {self.name!r} has shape {self.shape} and can't take a value of shape "
                f"{value.shape}."
            )
        return value

    def held(self) -> Cell:
        """What the replicas hold of it, as a distributed value: the form that reductions take."""
        return current_frame().load(self)


def _own(value: Any) -> Any:
    """A value in memory that nobody else changes: JAX may use a NumPy array's as it is, and later."""
    return jnp.array(value) if isinstance(value, np.ndarray) else value


def write_one_copy(variable: Variable, local_index: int, apply: Apply, value: Any) -> Any:
    """Write a local replica's copy of a variable that has one for each; returns the new value."""
    assert variable.mesh is not None
    cell = current_frame().load(variable)
    operand = value.select(local_index) if isinstance(value, Mirrored | PerReplica) else value
    new = variable._fitted(apply(cell.select(local_index), operand))
    if not is_tracer(new):
        new = variable.mesh.place(new, local_index)
    current_frame().store(variable, cell.replaced(local_index, new))
    return new
