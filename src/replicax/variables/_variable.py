"""`Variable`: state that outlives a step, with one meaning for every strategy.

A variable is a spec (`_spec.py`: what was asked for), a layout (`_layout.py`: where its value is, and what
reading and writing mean there) and a place in its strategy's store of arrays (`_store.py`). This class is
the API: it looks at the context and asks the layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_tracer
from replicax.contexts import StrategyProtocol, current, has_strategy
from replicax.errors import ContextError, TracingError, VariableError
from replicax.topology import ReplicaMesh
from replicax.types import (
    AggregationLike,
    SynchronizationLike,
    VariableAggregation,
    VariableSynchronization,
)
from replicax.values import IndexedSlices, Mirrored, PerReplica, is_number
from replicax.variables._aggregation import aggregate, check_same_method
from replicax.variables._copy import VariableCopy
from replicax.variables._frames import Cell, RecordingFrame
from replicax.variables._layout import Layout
from replicax.variables._readable import Readable, describe, seen_by_jax
from replicax.variables._spec import VariableSpec
from replicax.variables._store import Store
from replicax.variables._writes import ADD, REPLACE, SCATTER, SUBTRACT, Method, Write

if TYPE_CHECKING:
    from replicax.strategies import Strategy

__all__ = ["Variable"]


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


@final
@seen_by_jax
class Variable(Readable):
    """State that lives where the strategy in scope puts it.

    It computes like the array that it holds: `v + 1`, `v[0]`, `jnp.sum(v)`; in a replica function that
    is the replica's own copy. (`jax.lax` takes arrays only: `jax.lax.add(v.value, 1.0)`.) Write it with
    `assign`, `assign_add` and similar methods.

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

    __slots__ = ("__weakref__", "_layout", "_place", "_spec", "_store", "_strategy", "was_written")

    _spec: VariableSpec
    _layout: Layout
    _store: Store
    _place: int
    _strategy: StrategyProtocol
    was_written: bool
    """Whether it may have another value than its first."""

    def __new__(
        cls,
        initial_value: Any = None,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: Any = None,
        synchronization: SynchronizationLike = VariableSynchronization.AUTO,
        aggregation: AggregationLike = VariableAggregation.NONE,
        shape: Any = None,
        constraint: Callable[[Any], Any] | None = None,
    ) -> Variable:
        """Let the strategy in scope lay it out."""
        return current().strategy.create_variable(
            initial_value, trainable, name, dtype, synchronization, aggregation, shape, constraint
        )

    @classmethod
    def _make(cls, spec: VariableSpec, layout: Layout, strategy: StrategyProtocol, array: Any) -> Variable:
        """A variable with its array placed, in the store of `strategy`."""
        self = object.__new__(cls)
        self._spec, self._layout, self._strategy, self._store = spec, layout, strategy, strategy.store
        self._place = self._store.add(array)
        self.was_written = False
        return self

    def __del__(self) -> None:
        self._store.remove(self._place)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"The variable {self.name!r} can't be pickled: its value belongs to the devices of a strategy. "
            "Pickle `v.numpy()`, or save it with `rx.Checkpoint`."
        )

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
    def distribute_strategy(self) -> Strategy:
        """The strategy in whose scope it was made."""
        return cast("Strategy", self._strategy)

    @property
    def layout(self) -> Layout:
        """Where the value is, and what reading and writing it means there."""
        return self._layout

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The strategy's devices; None for variables made without a strategy."""
        return self._layout.mesh

    @property
    def device(self) -> Any:
        """The device of the (first) copy in this process."""
        return self._layout.device

    @property
    def is_distributed(self) -> bool:
        """Whether each replica has a copy, or a part, of its own."""
        return self._layout.has_copies

    @property
    def copies(self) -> tuple[Any, ...]:
        """The copies of this process: what `strategy.local_results` returns for it."""
        mesh = self._layout.mesh
        if not self._layout.has_copies or mesh is None:
            return (self,)
        return tuple(VariableCopy(self, i) for i in range(len(mesh.local_replica_ids)))

    @property
    def values(self) -> tuple[Any, ...]:
        """The copies of this process, if each replica has its own."""
        if not self._layout.has_copies:
            raise AttributeError(
                f"The variable {self.name!r} has one copy, so no `values`. `strategy.local_results(v)` "
                "works for every variable."
            )
        return self.copies

    def select(self, local_index: int) -> Any:
        """The copy of one local replica; the variable itself if all share one."""
        return VariableCopy(self, local_index) if self._layout.has_copies else self

    @property
    def made_at(self) -> str:
        """The line of the user's program that made it."""
        return self._spec.made_at

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        """A new variable of the same strategy with the same value."""
        array = self._layout.unwrap(current().frame.load(self))
        if is_tracer(array):
            raise TracingError(
                f"The variable {self.name!r} is copied while a step is traced, so that the copy would have "
                "no value afterwards. Copy it outside of the step, or take its value, `v.read_value()`."
            )
        memo[id(self)] = copied = self._make(self._spec, self._layout, self._strategy, jnp.copy(array))
        return copied

    def __copy__(self) -> Variable:
        """A new variable too: no two variables share their state."""
        return self.__deepcopy__({})

    def ref(self) -> _Reference:
        """Something hashable that stands for this variable, for sets and dict keys."""
        return _Reference(self)

    def is_initialized(self) -> bool:
        """True: a variable has its value from the start."""
        return True

    def __repr__(self) -> str:
        if not self._layout.has_copies:
            return describe(self.name, self)
        lines = ",\n".join(f"  {i}: {copy!r}" for i, copy in enumerate(self.copies))
        return f"{self._layout.type_name}:{{\n{lines}\n}}"

    # Its place in the store, for eager frames.

    def _view(self) -> Cell:
        return self._store.view(self._place, self._layout, not self._spec.shape)

    def _set_view(self, cell: Cell) -> None:
        self.was_written = True
        self._store.write(self._place, self._layout, cell)

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
        return self._layout.read(self) if index is None else self._layout.read_copy(self, index)

    def held(self) -> Any:
        """What each replica holds of it, as a distributed value: the form that reductions take."""
        return self._layout.held(self)

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
        return self._write(REPLACE, value, read_value)

    def assign_add(self, value: Any, read_value: bool = True) -> Any:
        """Add `value`, combined over the replicas like in `assign`.

        >>> v = rx.Variable(1.0)
        >>> v.assign_add(2.0)
        Array(3., dtype=float32)
        """
        return self._write(ADD, value, read_value)

    def assign_sub(self, value: Any, read_value: bool = True) -> Any:
        """Subtract `value`, combined over the replicas like in `assign`.

        >>> v = rx.Variable(1.0)
        >>> v.assign_sub(2.0)
        Array(-1., dtype=float32)
        """
        return self._write(SUBTRACT, value, read_value)

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

    def _write_rows(self, name: str, rows: Any) -> Any:
        if not isinstance(rows, IndexedSlices):
            raise TypeError(f"{name} takes an rx.IndexedSlices, got {type(rows).__name__}.")
        self._layout.check_method(self, name)
        return self._write(SCATTER[name], rows, True)

    def _write(self, method: Method, value: Any, read_value: bool) -> Any:
        here = current()
        if isinstance(here.frame, RecordingFrame):
            result = here.frame.record(self, Write(method, value))
            return result if read_value else None
        own = here.strategy is self._strategy
        if here.replica is not None and not own and has_strategy():
            raise ContextError(self._written_by_stranger(here.strategy, method.name))
        write = Write(method, self._checked(value, method.name))
        if own and here.replica is not None:
            result = self._layout.write_in_replica(self, here.replica, write)
        elif own and here.update_replica_id is not None:
            result = self._layout.write_copy(self, here.update_index, write)
        else:
            result = self._layout.write(self, write)
        return result if read_value else None

    def _write_merged(self, strategy: StrategyProtocol, method: Any, value: Any) -> Any:
        """Where replicas meet that write this variable: `value` is what each of them writes."""
        check_same_method(self, method)
        combined = aggregate(self.aggregation, value, strategy.communicator)
        return strategy.communicator.mirrored(self._layout.write(self, Write(method, combined)))

    def _written_by_stranger(self, strategy: StrategyProtocol, what: str) -> str:
        return (
            f"{what} of the variable {self.name!r} in a replica function of {strategy!r}, but the "
            f"variable was made outside of that strategy's scope (at {self.made_at}). Every replica "
            "would write it. Make it inside `with strategy.scope():`, or write it outside of the "
            "replica function."
        )

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
        value = jnp.asarray(value, self._spec.dtype)
        if value.shape != self._spec.shape:
            raise VariableError(
                f"The variable {self.name!r} has shape {self.shape} and can't take a value of shape "
                f"{value.shape}."
            )
        return value


def _own(value: Any) -> Any:
    """A value in memory of its own: JAX may alias a NumPy array's, which the caller may change."""
    return jnp.array(value) if isinstance(value, np.ndarray) else value
