"""`Variable`: state that outlives a step, with one meaning for every strategy.

A variable has a spec (`_spec.py`: its name, shape, dtype, ...), a layout (`_layout.py`: where its value is
placed, and what reading and writing mean there) and an index in its strategy's store of arrays
(`_store.py`). This class is the API: it looks at the context and calls the layout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._html import plain
from replicax._jax import is_tracer, restore_trace
from replicax._recording import unrecorded
from replicax.contexts import Context, StrategyProtocol, current, has_strategy
from replicax.errors import ContextError, TracingError, VariableError
from replicax.topology import ReplicaMesh
from replicax.types import (
    AggregationLike,
    SynchronizationLike,
    VariableAggregation,
    VariableSynchronization,
)
from replicax.values import IndexedSlices, Mirrored, PerReplica, TensorShape, copied, is_number, owned
from replicax.variables._aggregation import aggregate, check_same_method
from replicax.variables._copy import VariableCopy
from replicax.variables._frames import Cell, RecordingFrame
from replicax.variables._html import variable_table
from replicax.variables._layout import Layout
from replicax.variables._readable import Readable, describe, seen_by_jax
from replicax.variables._recorded import read_recorded, write_unrecorded
from replicax.variables._rows import HasRows
from replicax.variables._spec import VariableSpec
from replicax.variables._store import Store
from replicax.variables._table import row_numbers
from replicax.variables._writes import ADD, METHODS, REPLACE, SCATTER_ND, SUBTRACT, Method, Write

if TYPE_CHECKING:
    from replicax.strategies import Strategy

__all__ = ["Variable"]


@final
class _Reference:
    """A hashable reference to a variable; references to the same variable are equal."""

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
class Variable(HasRows):
    """State that the strategy in scope places on its devices.

    Use it like the array that it holds: `v + 1`, `v[0]`, `jnp.sum(v)`. In a replica function that is the
    replica's own copy. (`jax.lax` takes arrays only: `jax.lax.add(v.value, 1.0)`.) Write it with
    `assign`, `assign_add` and similar methods.

    `jax.tree` functions see the array, so `jax.grad(loss)({"w": v})` differentiates with respect to the
    value. To map over the variables themselves, pass `is_leaf=lambda x: isinstance(x, rx.Variable)`.

    Args:
        initial_value: an array, anything that converts to one, or a function without arguments that
            returns one and is called once.
        trainable: whether optimizers should update it; by default True, or False for ON_READ.
        name: shown in messages and checkpoints.
        dtype: the dtype; by default that of the initial value.
        synchronization: when the copies are synchronized. AUTO and ON_WRITE: at every write, so that they
            are always equal (a mirrored variable). ON_READ: replicas write their own part without
            communication, and reading outside of replicas combines the parts.
        aggregation: how the replicas' values are combined: when a replica function writes the variable
            (ON_WRITE), or when the variable is read (ON_READ).
        shape: if given, the shape that the initial value must have. With `ShardedStrategy` and an initial
            value that is a function, JAX then compiles the function, and each device computes its part.
        constraint: a function that optimizers apply after an update; `assign` does not.
        partition: the number of parts along each axis, to shard the value over the devices of each replica:
            `[1, 4]` for the columns of a matrix. By default each device has a copy, unless a rule of the
            strategy matches the name. See `MirroredStrategy(logical_devices=...)`.

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
    """Whether the value may differ from the initial value."""

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
        *,
        partition: Sequence[int] | None = None,
    ) -> Variable:
        """Create it with the strategy in scope."""
        return current().strategy.create_variable(
            initial_value,
            trainable,
            name,
            dtype,
            synchronization,
            aggregation,
            shape,
            constraint,
            partition=partition,
        )

    @classmethod
    def _make(cls, spec: VariableSpec, layout: Layout, strategy: StrategyProtocol, array: Any) -> Variable:
        """Add `array`, placed according to `layout`, to the store of `strategy`."""
        self = object.__new__(cls)
        self._spec, self._layout, self._strategy, self._store = spec, layout, strategy, strategy.store
        self._place = self._store.add(array)
        self.was_written = False
        return self

    def __del__(self) -> None:
        self._store.remove(self._place)

    def __reduce__(self) -> Any:
        if self._layout.servers is not None:
            return self._layout.servers.reference(self)
        raise TypeError(
            f"The variable {self.name!r} can't be pickled: its value is on the devices of a strategy. "
            "Pickle `v.numpy()`, or save it with `rx.Checkpoint`."
        )

    # Properties.

    @property
    def name(self) -> str:
        """The name, with TensorFlow's suffix ":0"."""
        return f"{self._spec.name}:0"

    @property
    def shape(self) -> TensorShape:
        """The shape of the value: a tuple, with TensorFlow's `as_list()` and `rank`."""
        return self._spec.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the value."""
        return self._spec.dtype

    def get_shape(self) -> TensorShape:
        """The shape; TensorFlow's older spelling of `shape`.

        >>> rx.Variable([1.0, 2.0]).get_shape()
        (2,)
        """
        return self.shape

    @property
    def initial_value(self) -> Any:
        """Raises, as in eager TensorFlow: the initial value is not kept.

        >>> rx.Variable(1.0).initial_value
        Traceback (most recent call last):
            ...
        replicax.errors.ContextError: v.initial_value of the variable ...
        """
        raise ContextError(
            f"v.initial_value of the variable {self.name!r} is not available: variables do not keep it. "
            "Read it before the first write, `start = v.read_value()`."
        )

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
        """When the copies are synchronized."""
        return self._spec.synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """How the replicas' values are combined."""
        return self._spec.aggregation

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        """A function that optimizers apply after an update."""
        return self._spec.constraint

    @property
    def partition(self) -> tuple[int, ...] | None:
        """The number of parts along each axis, for the devices of a replica; None if each has a copy."""
        return self._spec.partition

    @property
    def distribute_strategy(self) -> Strategy:
        """The strategy in whose scope it was created."""
        return cast("Strategy", self._strategy)

    @property
    def layout(self) -> Layout:
        """Where the value is placed, and what reading and writing it means there."""
        return self._layout

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The strategy's devices; None for variables created without a strategy."""
        return self._layout.mesh

    @property
    def device(self) -> Any:
        """The device of this process's (first) copy."""
        return self._layout.device

    @property
    def is_distributed(self) -> bool:
        """Whether each replica has its own copy or part."""
        return self._layout.has_copies

    @property
    def copies(self) -> tuple[Any, ...]:
        """The copies in this process: what `strategy.local_results` returns."""
        mesh = self._layout.mesh
        if not self._layout.has_copies or mesh is None:
            return (self,)
        return tuple(VariableCopy(self, i) for i in range(len(mesh.local_replica_ids)))

    @property
    def values(self) -> tuple[Any, ...]:
        """The copies in this process; raises unless each replica has its own."""
        if not self._layout.has_copies:
            raise AttributeError(
                f"The variable {self.name!r} has one copy, so it has no `values`. "
                "`strategy.local_results(v)` works for every variable."
            )
        return self.copies

    def select(self, local_index: int) -> Any:
        """The copy of one local replica; the variable itself if all replicas share it."""
        return VariableCopy(self, local_index) if self._layout.has_copies else self

    @property
    def made_at(self) -> str:
        """The line of the user's program that created it."""
        return self._spec.made_at

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        """A new variable of the same strategy with the same value."""
        array = self._layout.unwrap(current().frame.load(self))
        if is_tracer(array):
            raise TracingError(
                f"The variable {self.name!r} was copied while a step is being traced, so the copy would "
                "have no value after the trace. Copy it outside of the step, or use `v.read_value()`."
            )
        if self._layout.servers is not None:
            spec = self._spec
            memo[id(self)] = new = self._strategy.create_variable(
                array,
                spec.trainable,
                spec.name,
                None,
                spec.synchronization,
                spec.aggregation,
                None,
                spec.constraint,
            )
            return new
        memo[id(self)] = new = self._make(self._spec, self._layout, self._strategy, copied(array))
        return new

    def __copy__(self) -> Variable:
        """Also a new variable: two variables never share their state."""
        return self.__deepcopy__({})

    def ref(self) -> _Reference:
        """A hashable reference to this variable, for sets and dict keys."""
        return _Reference(self)

    def is_initialized(self) -> bool:
        """True: a variable has its value from the start."""
        return True

    def __repr__(self) -> str:
        if not self._layout.has_copies:
            return describe(self.name, self)
        lines = ",\n".join(f"  {i}: {copy!r}" for i, copy in enumerate(self.copies))
        return f"{self._layout.type_name}:{{\n{lines}\n}}"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return variable_table(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        text = plain(self, f"{self._layout.type_name} {self.name!r}", [self])
        return {"text/html": self._repr_html_(), "text/plain": text}

    # The view of its array in the store, for eager frames.

    def _view(self) -> Cell:
        return self._store.view(self._place, self._layout, not self._spec.shape)

    def _set_view(self, cell: Cell) -> None:
        self.was_written = True
        self._store.write(self._place, self._layout, cell)

    # The array itself, for checkpoints.

    @property
    def _array_shape(self) -> tuple[int, ...]:
        """The shape of the array, which may be padded."""
        return self._layout.array_shape(self._spec)

    def _stored_array(self) -> jax.Array:
        """The array, placed according to the layout; a step may donate it unless the store is locked."""
        self._layout.refresh([self])
        return self._store.arrays[self._place]

    def _replace_array(self, array: jax.Array) -> None:
        """Replace the array with one that is placed according to the layout."""
        self.was_written = True
        self._store.replace(self._place, array)

    # Reading.

    def read_value(self) -> jax.Array:
        """The value: the replica's copy in a replica function, the combined value outside.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable([1.0, 2.0])
        >>> v.read_value()
        Array([1., 2.], dtype=float32)
        """
        here = current()
        return read_recorded(self, here) if here.tapes else self._read(here)

    def _read(self, here: Context) -> jax.Array:
        index = here.local_index if here.strategy is self._strategy else None
        return self._layout.read(self) if index is None else self._layout.read_copy(self, index)

    def sparse_read(self, indices: Any, name: str | None = None) -> jax.Array:
        """The rows at `indices`, an integer array of any shape; rows out of range are NaN.

        If the variable is on parameter servers, a compiled step fetches only the rows that it looks up, and
        sends back only the gradients of these rows.

        >>> table = rx.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> table.sparse_read([2, 0])
        Array([[5., 6.],
               [1., 2.]], dtype=float32)
        """
        indices = indices.read_value() if isinstance(indices, Readable) else jnp.asarray(indices)
        if not jnp.issubdtype(indices.dtype, jnp.integer) or not self.shape:
            raise TypeError(
                f"sparse_read of the variable {self.name!r} of shape {self.shape} got indices of dtype "
                f"{indices.dtype}. It takes integer row numbers, and a variable with at least one axis."
            )
        with jax.named_scope(name or "sparse_read"):
            return self._layout.look_up(self, indices)

    def __getitem__(self, index: Any) -> jax.Array:
        if self._layout.servers is None or not self.shape or not _is_row_number(index):
            return self.read_value()[index]
        return self.sparse_read(jnp.clip(row_numbers(index, self.shape[0]), 0, self.shape[0] - 1))

    def held(self) -> Any:
        """What each replica holds, as a distributed value that can be reduced."""
        return self._layout.held(self)

    # Writing.

    def assign(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Replace the value.

        In a replica function, the replicas' values are combined according to `aggregation`; if the variable
        is ON_READ, each replica writes its own part instead. Outside of replicas, all copies become
        `value`; with ON_READ and aggregation SUM, `value` is split into parts that add up to it.

        Args:
            value: the new value; it is broadcast to the shape of the variable.
            use_locking: has no effect: writes are always atomic.
            name: shown in profiles.
            read_value: whether to return the new value, rather than None.

        >>> v = rx.Variable([1.0, 2.0])
        >>> v.assign([3.0, 4.0])
        Array([3., 4.], dtype=float32)
        """
        return self._write(REPLACE, value, read_value, name)

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Add `delta`, combined over the replicas as in `assign`.

        >>> v = rx.Variable(1.0)
        >>> v.assign_add(2.0)
        Array(3., dtype=float32)
        """
        return self._write(ADD, delta, read_value, name)

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtract `delta`, combined over the replicas as in `assign`.

        >>> v = rx.Variable(1.0)
        >>> v.assign_sub(2.0)
        Array(-1., dtype=float32)
        """
        return self._write(SUBTRACT, delta, read_value, name)

    def _write_rows(self, name: str, rows: Any, scope: str | None) -> Any:
        if not isinstance(rows, IndexedSlices):
            raise TypeError(f"{name} takes an rx.IndexedSlices, got {type(rows).__name__}.")
        self._layout.check_method(self, name)
        return self._write(METHODS[name], rows, True, scope)

    def _write(self, method: Method, value: Any, read_value: bool, scope: str | None = None) -> Any:
        if scope is not None:
            with jax.named_scope(scope):
                return self._write(method, value, read_value)
        here = current()
        if not here.tapes:
            return self._write_now(here, method, value, read_value)
        write = functools.partial(self._write_now, here, method, value, read_value)
        return write_unrecorded(self, here, write)

    def _write_now(self, here: Context, method: Method, value: Any, read_value: bool) -> Any:
        if isinstance(here.frame, RecordingFrame):
            result = here.frame.record(self, Write(method, value))
            return result if read_value else None
        own = here.strategy is self._strategy
        if here.replica is not None and not own and has_strategy():
            raise ContextError(self._of_another_strategy(here.strategy, method.name))
        write = Write(method, self._checked(value, method))
        if own and here.replica is not None:
            result = self._layout.write_in_replica(self, here.replica, write)
        elif own and here.update_replica_id is not None:
            result = self._layout.write_copy(self, here.update_index, write)
        else:
            restore_trace()
            result = self._layout.write(self, write)
        return result if read_value else None

    def _write_merged(self, strategy: StrategyProtocol, method: Any, value: Any) -> Any:
        """The merge function of the replicas' writes; `value` has what each replica writes."""
        check_same_method(self, method)
        combined = aggregate(self.aggregation, value, strategy.communicator)
        return strategy.communicator.mirrored(self._layout.write(self, Write(method, combined)))

    def _of_another_strategy(self, strategy: StrategyProtocol, what: str) -> str:
        return (
            f"{what} of the variable {self.name!r} in a replica function of {strategy!r}, but the "
            f"variable was created outside of that strategy's scope (at {self.made_at}), so each replica "
            "would write it. Create it inside `with strategy.scope():`, or write it outside of the "
            "replica function."
        )

    def _checked(self, value: Any, method: Method) -> Any:
        """Check the dtype and shape of `value`, and convert it for the write."""
        what = method.name
        if method.is_sliced and self._layout.servers is not None:
            raise NotImplementedError(
                f"{what} of the variable {self.name!r}: parameter servers can't write slices. Write rows "
                "with `v.scatter_update(...)`, or the whole value with `v.assign(...)`."
            )
        if isinstance(value, Variable) and current().replica is None:
            value = current().frame.load(value)
        elif isinstance(value, Readable):
            value = value.read_value()
        if isinstance(value, IndexedSlices):
            check = self._spec.check_places if what in SCATTER_ND else self._spec.check_rows
            check(value, what)
            return IndexedSlices(_own(value.values), _own(value.indices), value.dense_shape)
        if isinstance(value, PerReplica | Mirrored):
            return value
        if not is_number(value):
            value = self._spec.from_python(value, what)
        if not method.is_sliced:  # the writer of a slice has already checked its value
            self._spec.check_fits(value, what)
        return _own(value)

    def _fitted(self, value: Any) -> Any:
        """Convert a computed value to the variable's dtype; raise if its shape differs."""
        value = jnp.asarray(value, self._spec.dtype)
        if value.shape != self._spec.shape:
            raise VariableError(
                f"The variable {self.name!r} has shape {self.shape} and can't take a value of shape "
                f"{value.shape}."
            )
        return value


def _is_row_number(index: Any) -> bool:
    """Whether an index is a row number, or an array of row numbers."""
    if isinstance(index, jax.Array | np.ndarray | np.generic):
        return jnp.issubdtype(index.dtype, jnp.integer)
    return isinstance(index, int) and not isinstance(index, bool)


def _own(value: Any) -> Any:
    value = unrecorded(value)
    return owned(value) if isinstance(value, np.ndarray) else value
