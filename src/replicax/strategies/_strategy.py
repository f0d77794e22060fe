"""`Strategy`: what all strategies share.

Strategies differ only in their `Answers`, such as how per-replica values are combined and how a variable is
laid out. Everything else is shared. This file runs the replicas and combines their results. The input
methods are in `_distribute`, the methods for replicas with several devices in `_logical`, the creation of
variables in `_creation` and the lower-level API in `_extended`. `Strategy` adds to `StrategyBase` the
methods that version 1 of `tf.distribute` defines differently (see `compat.v1`).
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Self, final, overload

import jax
import jax.numpy as jnp

from replicax._jax import restore_trace
from replicax._messages import brief
from replicax.collectives import Communicator, gather_leaves, reduce_leaves_over
from replicax.contexts import Scope, require_cross_replica
from replicax.execution import Function, in_replicas, run
from replicax.input import HostBatches, Pipeline, Target
from replicax.strategies import _creation, _distribute, _logical
from replicax.strategies._answers import Answers, ShardSetting
from replicax.strategies._extended import StrategyExtended
from replicax.strategies._held_values import flatten_values
from replicax.strategies._html import strategy_table
from replicax.strategies._older_names import refuse
from replicax.strategies._run_options import RunOptions
from replicax.strategies._signatures import Axes, Leaf, Structure, T, Value
from replicax.topology import ReplicaMesh
from replicax.types import ReduceOp, ReduceOpLike, Untyped
from replicax.values import (
    FIND,
    DistributedValues,
    Mirrored,
    PerReplica,
    flatten,
    is_number,
    map_leaves,
    masked,
)
from replicax.variables import Servers, Sharded, Store, Variable, VariableCopy, VariableSpec

__all__ = ["Strategy", "StrategyBase"]


class StrategyBase(abc.ABC):
    """The methods that are the same in all versions of the API; see `Strategy`."""

    answers: Answers
    """What distinguishes this strategy from others."""
    communicator: Communicator
    """How values are combined over the replicas."""
    mesh: ReplicaMesh
    """The devices, by replica."""
    store: Store
    """The arrays of this strategy's variables."""
    compiled_runs: weakref.WeakKeyDictionary[Any, Any]
    """Compiled steps that run a function in every replica, by function; see `execution.in_replicas`."""

    def __init__(self, answers: Answers) -> None:
        self._give(answers)
        # Processes must agree on the order of variables, but they collect garbage at different times.
        self.store = Store(reuse_places=self.mesh.is_local)
        self.compiled_runs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    if not TYPE_CHECKING:  # type checkers know that other names do not exist

        def __getattr__(self, name: str) -> Any:
            raise refuse(self, name)

    def _give(self, answers: Answers) -> None:
        """Use these answers from now on. After construction, only `rx.explain` calls this, in a trace."""
        self.answers = answers
        self.communicator = answers.communicator
        self.mesh = answers.communicator.mesh
        vars(self).pop("_replica_ids", None)  # those of the mesh before

    def __repr__(self) -> str:
        names = [row[0] if len(row) == 1 else list(row) for row in self.mesh.device_names]
        return f"{type(self).__name__}({names})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return strategy_table(self)

    def __copy__(self) -> Self:
        """Return the strategy itself: it is immutable."""
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return the strategy itself: it is immutable, and its variables refer to it by identity."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} can't be pickled: its devices belong to this process. Create a strategy in the "
            "other process, and pass values to it as NumPy arrays or in a checkpoint."
        )

    @property
    @final
    def num_replicas_in_sync(self) -> int:
        """The number of replicas in all processes.

        >>> rx.MirroredStrategy(["CPU:0", "CPU:1"]).num_replicas_in_sync
        2
        """
        return self.mesh.num_replicas

    @property
    @final
    def axis_name(self) -> str:
        """The name of the replica axis, for JAX's collectives and layers that take an `axis_name`.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group * 4.0)
        >>> means = strategy.run(lambda x: jax.lax.pmean(x, strategy.axis_name), args=(x,))
        >>> strategy.local_results(means)
        (Array(2., dtype=float32), Array(2., dtype=float32))
        """
        return self.mesh.axis_name

    @property
    @final
    def cluster_resolver(self) -> Any:
        """The resolver that found the cluster; None for single-machine strategies."""
        return self.answers.cluster_resolver

    @property
    def parameter_device(self) -> Any:
        """The device of state with a single copy; None if each replica has a copy."""
        return self.answers.parameter_device

    @property
    def places_values(self) -> bool:
        """Whether values are placed on this strategy's devices, rather than wherever JAX places them."""
        return self.answers.places_values

    @property
    def find_shards(self) -> Callable[[VariableSpec], Sharded | None] | None:
        """Returns how the update of a variable is sharded over the replicas; None if none is."""
        return self.answers.find_shards

    @property
    def shard(self) -> ShardSetting:
        """What is sharded over the replicas."""
        return self.answers.shards.shard

    @property
    def servers(self) -> Servers | None:
        """The parameter servers that hold its variables; None if the values are in this process."""
        return self.answers.servers

    @property
    def replica_ids(self) -> tuple[jax.Array, ...]:
        """The ids of this process's replicas, each as an array on the replica's device."""
        return self._replica_ids

    @cached_property
    def _replica_ids(self) -> tuple[jax.Array, ...]:
        with jax.ensure_compile_time_eval():
            ids = [jnp.int32(i) for i in self.mesh.local_replica_ids]
            if not self.places_values:
                return tuple(ids)
            return tuple(self.mesh.place(replica_id, i) for i, replica_id in enumerate(ids))

    def scope(self) -> AbstractContextManager[Self]:
        """A `with` block in which this strategy is in use and places new variables.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable([1.0, 2.0])
        >>> isinstance(v, rx.MirroredVariable)
        True
        """
        restore_trace()
        require_cross_replica(self, "scope()")
        return Scope(self)

    @overload
    def run(
        self,
        fn: Callable[..., Untyped],
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] | None = ...,
        options: RunOptions | None = ...,
    ) -> Any: ...
    @overload
    def run(
        self,
        fn: Callable[..., Leaf],
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] | None = ...,
        options: RunOptions | None = ...,
    ) -> PerReplica[Leaf]: ...
    @overload
    def run(
        self,
        fn: Callable[..., Structure],
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] | None = ...,
        options: RunOptions | None = ...,
    ) -> Structure: ...
    @final
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Call `fn` once for each replica, each with its part of the arguments.

        Inside `rx.function`, or if `fn` itself is an `rx.function`, the replicas are compiled into one
        program. Otherwise they run one after the other, as ordinary Python.

        Args:
            fn: the replica function. In it, `rx.get_replica_context()` returns the replica's id and the
                collectives.
            args: positional arguments. Each replica gets its part of per-replica values, even inside
                structures, and the whole of everything else.
            kwargs: keyword arguments, treated in the same way.
            options: a `RunOptions`.

        Returns:
            The replicas' results merged into one structure. Its leaves are `PerReplica`, except where all
            replicas returned the same object. With one replica, its result.

        Raises:
            ContextError: inside another replica function, or under another strategy.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> x = strategy.distribute_values_from_function(
        ...     lambda ctx: jnp.ones(2) + ctx.replica_id_in_sync_group)
        >>> strategy.run(lambda x, y: x * y, args=(x, 10))
        PerReplica:{
          0: Array([10., 10.], dtype=float32),
          1: Array([20., 20.], dtype=float32)
        }
        """
        restore_trace()
        require_cross_replica(self, "run()")
        given, named = _checked_call(fn, args, kwargs, options)
        padded = False
        for leaf in flatten((given, named))[0]:
            if isinstance(leaf, PerReplica):
                self._check_argument(leaf, options)
                padded = padded or leaf.mask is not None or bool(leaf.doubt)
        if isinstance(fn, Function):
            return in_replicas(self, fn)(*given, **named)
        return run(self, fn, given, named, padded=padded)

    def _check_argument(self, value: PerReplica, options: RunOptions | None) -> None:
        has, needs = value.num_components, len(self.mesh.local_replica_ids)
        if has is not None and has < needs and value.mesh in (None, self.mesh):
            raise IndexError(
                f"strategy.run got a PerReplica value with {has} components for {needs} replicas. Make it "
                "with this strategy, for example with `strategy.distribute_values_from_function`."
            )
        value.on(self.mesh)
        dynamic = options is None or options.experimental_enable_dynamic_batch_size
        if not dynamic and value.uniform is None:
            raise ValueError(
                "strategy.run got a per-replica argument whose shapes differ between replicas, which "
                "RunOptions(experimental_enable_dynamic_batch_size=False) does not allow. Use a batch size "
                "that the number of replicas divides, or leave out the option."
            )

    def _reduce(self, reduce_op: ReduceOpLike, value: Any, axis: Any, example_mask: Any = FIND) -> Any:
        require_cross_replica(self, "reduce()")
        op = ReduceOp.parse(reduce_op)
        leaves, treedef = flatten_values(value)
        leaves = masked(leaves, example_mask, self.mesh)
        return treedef.unflatten(reduce_leaves_over(self.communicator, op, leaves, axis))

    @overload
    def gather(self, value: Untyped, axis: int, *, example_mask: Any = ...) -> Any: ...
    @overload
    def gather(self, value: Value, axis: int, *, example_mask: Any = ...) -> jax.Array: ...
    @overload
    def gather(self, value: Structure, axis: int, *, example_mask: Any = ...) -> Structure: ...
    @final
    def gather(self, value: Any, axis: int, *, example_mask: Any = FIND) -> Any:
        """Concatenate the replicas' values along `axis`, in replica order.

        Args:
            value: a per-replica value or a structure of them; the sizes along `axis` may differ.
            axis: the axis to concatenate along; negative counts from the end.
            example_mask: which rows are examples: the `example_mask` of a padded batch, or None for all
                rows. By default, the mask of the padded batch that the value was computed from.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group[None])
        >>> strategy.gather(ids, axis=0)
        Array([0, 1], dtype=int32)
        """
        require_cross_replica(self, "gather()")
        leaves, treedef = flatten_values(value)
        leaves = masked(leaves, example_mask, self.mesh)
        return treedef.unflatten(gather_leaves(self.communicator, leaves, axis))

    @overload
    def local_results(self, value: Untyped) -> tuple[Any, ...]: ...
    @overload
    def local_results(self, value: Variable) -> tuple[VariableCopy, ...]: ...
    @overload
    def local_results(self, value: PerReplica[T] | Mirrored[T]) -> tuple[T, ...]: ...
    @overload
    def local_results(self, value: Structure) -> tuple[Structure, ...]: ...
    @final
    def local_results(self, value: Any) -> tuple[Any, ...]:
        """The parts of a distributed value that belong to this process's replicas, as a tuple.

        Args:
            value: what `run` returned, a variable, or a structure of such values. Anything else is
                returned in a tuple of one element.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.local_results(strategy.run(lambda: jnp.ones(2)))
        (Array([1., 1.], dtype=float32), Array([1., 1.], dtype=float32))
        """
        if isinstance(value, Variable):
            return value.copies
        leaves, _ = flatten(value)
        if not any(isinstance(leaf, DistributedValues) for leaf in leaves):
            return (value,)
        count = min(len(x.values) for x in leaves if isinstance(x, DistributedValues))

        def part(leaf: Any, index: int) -> Any:
            return leaf.values[index] if isinstance(leaf, DistributedValues) else leaf

        return tuple(map_leaves(lambda leaf, i=i: part(leaf, i), value) for i in range(count))

    @cached_property
    def input_pipeline(self) -> Pipeline:
        """The part of the input that this process reads."""
        return Pipeline.of(self.mesh)

    @cached_property
    def _input_target(self) -> Target:
        return Target(self.mesh, self.input_pipeline, committed=self.places_values)

    @cached_property
    def _host_batches(self) -> HostBatches:
        return HostBatches(self._input_target)

    # Methods that are defined in their own files, as functions of the strategy.
    create_variable = _creation.create_variable
    distribute_dataset = _distribute.distribute_dataset
    distribute_datasets_from_function = _distribute.distribute_datasets_from_function
    distribute_batch = _distribute.distribute_batch
    make_numpy_dataset = _distribute.make_numpy_dataset
    distribute_values_from_function = _distribute.distribute_values_from_function
    assign_to_logical_device = _logical.assign_to_logical_device
    split_to_logical_devices = _logical.split_to_logical_devices
    replicate_to_logical_devices = _logical.replicate_to_logical_devices

    # TensorFlow's older spellings.
    experimental_run_v2 = run
    experimental_local_results = local_results
    experimental_distribute_dataset = distribute_dataset
    experimental_distribute_datasets_from_function = distribute_datasets_from_function
    experimental_distribute_values_from_function = distribute_values_from_function
    experimental_assign_to_logical_device = assign_to_logical_device
    experimental_split_to_logical_devices = split_to_logical_devices
    experimental_replicate_to_logical_devices = replicate_to_logical_devices


class Strategy(StrategyBase):
    """Where variables are placed, how replicas run and how they communicate.

    The base of all strategies; use `MirroredStrategy`, `OneDeviceStrategy` or `CentralStorageStrategy`.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> isinstance(strategy, rx.Strategy)
    True
    >>> strategy
    MirroredStrategy(['CPU:0', 'CPU:1'])
    """

    @cached_property
    def extended(self) -> StrategyExtended:
        """The lower-level API, for example for optimizers."""
        return StrategyExtended(self)

    @overload
    def reduce(
        self, reduce_op: ReduceOpLike, value: Untyped, axis: Axes, *, example_mask: Any = ...
    ) -> Any: ...
    @overload
    def reduce(
        self, reduce_op: ReduceOpLike, value: Value, axis: Axes, *, example_mask: Any = ...
    ) -> jax.Array: ...
    @overload
    def reduce(
        self, reduce_op: ReduceOpLike, value: Structure, axis: Axes, *, example_mask: Any = ...
    ) -> Structure: ...
    @final
    def reduce(self, reduce_op: ReduceOpLike, value: Any, axis: Any, *, example_mask: Any = FIND) -> Any:
        """Combine a per-replica value into one array.

        Args:
            reduce_op: "SUM" or "MEAN".
            value: what `run` returned, or a structure of such values. A value that is the same for all
                replicas counts once per replica.
            axis: None combines element by element. An int or a tuple of ints also reduces over those axes
                of each replica's value; MEAN then divides by the total number of elements, so it is
                correct for replicas with different batch sizes.
            example_mask: which rows are examples, for a reduction over axis 0: the `example_mask` of a
                padded batch, or None for all rows. By default, the mask of the padded batch that the value
                was computed from.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def losses():
        ...     replica = int(rx.get_replica_context().replica_id_in_sync_group)
        ...     return jnp.full(3 - replica, float(replica))      # 3 examples, then 2
        >>> strategy.reduce("MEAN", strategy.run(losses), axis=0)
        Array(0.4, dtype=float32)
        """
        return self._reduce(reduce_op, value, axis, example_mask)

    experimental_make_numpy_dataset = StrategyBase.make_numpy_dataset


def _checked_call(fn: Any, args: Any, kwargs: Any, options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not callable(fn):
        raise TypeError(f"strategy.run needs a function to call, got {fn!r}.")
    if not isinstance(args, list | tuple):
        as_kwargs = ", or kwargs=batch if its keys are the names of the function's arguments"
        got = brief(args) if is_number(args) else f"a value of type {type(args).__name__}"
        raise ValueError(
            f"strategy.run(fn, args=...) takes a tuple or list of arguments, got {got}. For one argument "
            "write args=(x,)"
            f"{as_kwargs if isinstance(args, Mapping) else ''}."
        )
    if not isinstance(kwargs, Mapping | None):
        raise TypeError(f"strategy.run(fn, kwargs=...) takes a dict of arguments, got {kwargs!r}.")
    if not isinstance(options, RunOptions | None):
        raise TypeError(f"strategy.run(fn, options=...) takes an rx.RunOptions, got {options!r}.")
    return tuple(args), dict(kwargs or {})
