"""`Strategy`: what all strategies share.

Strategies differ only in a few answers, `Answers`:

    which devices make up the mesh, and
    how per-replica values are combined         communicator
    how a variable is laid out                  choose_layout
    where single-copy state is placed           parameter_device

Everything else is shared: here and, for the lower-level API, in `_extended`. `StrategyBase` does the work;
`Strategy` adds the methods that version 1 of `tf.distribute` defines differently (see `compat.v1`).
"""

from __future__ import annotations

import abc
import concurrent.futures
import contextvars
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Literal, NoReturn, Self, TypeAlias, TypeVar, final, overload

import jax
import jax.numpy as jnp
import numpy as np

from replicax.collectives import Communicator, gather_leaves, reduce_leaves_over
from replicax.contexts import Scope, current, enter_default, require_cross_replica
from replicax.execution import Function, in_replicas, run
from replicax.input import (
    ArrayDataset,
    DistributedDataset,
    HostBatches,
    InputContext,
    InputOptions,
    Pipeline,
    Target,
    distribute_dataset,
    distribute_datasets_from_function,
    from_arrays,
)
from replicax.strategies import _logical
from replicax.strategies._extended import StrategyExtended
from replicax.strategies._held_values import flatten_values
from replicax.strategies._run_options import RunOptions, ValueContext
from replicax.topology import ReplicaMesh
from replicax.types import ReduceOp, ReduceOpLike
from replicax.values import DistributedValues, Mirrored, PerReplica, flatten, map_leaves, regroup_apart
from replicax.variables import (
    Layout,
    Store,
    Variable,
    VariableCopy,
    VariableSpec,
    current_frame,
    prepare_variable,
)

__all__ = ["Answers", "Strategy", "StrategyBase"]

# What a function returns, or a dataset gives, has a leaf's type or a structure's. The leaf becomes a
# `PerReplica`. The type of a structure says nothing of its leaves that could be rewritten, so it stays:
# right in what `reduce`, `gather` and `local_results` return, and in between the leaves are per-replica
# values.
_Leaf = TypeVar("_Leaf", bound=jax.Array | np.ndarray | float | complex)
_Structure = TypeVar("_Structure")
_T = TypeVar("_T")


class _Untyped:
    """The type of no value, so that in an overload only `Any` matches it."""


_Value: TypeAlias = DistributedValues | jax.Array | np.ndarray | float | complex
_Axes: TypeAlias = int | Sequence[int] | None
_PartialBatch: TypeAlias = Literal["exact", "pad", "error"]
_Batches: TypeAlias = Iterable[_T] | Callable[[], Iterable[_T]]


@final
@dataclasses.dataclass(frozen=True)
class Answers:
    """What distinguishes one strategy from another.

    Args:
        communicator: the devices of each replica, and how values are combined over them.
        choose_layout: how a variable is laid out. Returns the completed spec and the layout; raises if the
            strategy can't have such a variable.
        parameter_device: the device of state that has one copy; None if each replica has a copy.
        places_values: whether values are placed on the devices of the mesh, not wherever JAX puts them.
        plain_values: whether per-replica values are plain, because there is only one replica.
        cluster_resolver: the resolver that found the cluster; None for strategies of one machine.
        why_not_assignable: why values can't be assigned to a logical device; None if they can.
    """

    communicator: Communicator
    choose_layout: Callable[[VariableSpec], tuple[VariableSpec, Layout]]
    parameter_device: Any = None
    places_values: bool = True
    plain_values: bool = False
    cluster_resolver: Any = None
    why_not_assignable: str | None = None


class StrategyBase(abc.ABC):
    """The methods that are the same in all versions of the API; see `Strategy`."""

    answers: Answers
    """What distinguishes this strategy from others."""
    communicator: Communicator
    """How values are combined over the replicas."""
    mesh: ReplicaMesh
    """The devices, by replica."""
    parameter_device: Any
    """The device of state that has one copy; None if variables have one on every device."""
    places_values: bool
    """Whether values go to this strategy's devices, rather than wherever JAX puts them."""
    store: Store
    """The arrays of this strategy's variables."""
    compiled_runs: weakref.WeakKeyDictionary[Any, Any]
    """The steps "run this function in every replica", by function; see `execution.in_replicas`."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.communicator = answers.communicator
        self.mesh = answers.communicator.mesh
        self.parameter_device = answers.parameter_device
        self.places_values = answers.places_values
        self.store = Store()
        self.compiled_runs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        names = [row[0] if len(row) == 1 else list(row) for row in self.mesh.device_names]
        return f"{type(self).__name__}({names})"

    def __copy__(self) -> Self:
        """Itself: a strategy never changes."""
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Itself: a strategy never changes, and its variables know it by identity."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} can't be pickled: its devices belong to this process. Create a strategy in the "
            "other process, and pass values to it as NumPy arrays or in a checkpoint."
        )

    @property
    @final
    def num_replicas_in_sync(self) -> int:
        """How many replicas run together, over all processes.

        >>> rx.MirroredStrategy(["CPU:0", "CPU:1"]).num_replicas_in_sync
        2
        """
        return self.mesh.num_replicas

    @property
    @final
    def cluster_resolver(self) -> Any:
        """The resolver that found the cluster; None for strategies of one machine."""
        return self.answers.cluster_resolver

    @property
    def replica_ids(self) -> tuple[jax.Array, ...]:
        """The ids of this process's replicas, each an array on its replica's device."""
        return self._replica_ids

    @cached_property
    def _replica_ids(self) -> tuple[jax.Array, ...]:
        with jax.ensure_compile_time_eval():
            ids = [jnp.int32(i) for i in self.mesh.local_replica_ids]
            if not self.places_values:
                return tuple(ids)
            return tuple(self.mesh.place(replica_id, i) for i, replica_id in enumerate(ids))

    def scope(self) -> AbstractContextManager[Self]:
        """Use this strategy in a `with` block: variables made there are laid out by it.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable([1.0, 2.0])
        >>> isinstance(v, rx.MirroredVariable)
        True
        """
        require_cross_replica(self, "scope()")
        return Scope(self)

    @overload
    def run(
        self,
        fn: Callable[..., _Untyped],
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] | None = ...,
        options: RunOptions | None = ...,
    ) -> Any: ...
    @overload
    def run(
        self,
        fn: Callable[..., _Leaf],
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] | None = ...,
        options: RunOptions | None = ...,
    ) -> PerReplica[_Leaf]: ...
    @overload
    def run(
        self,
        fn: Callable[..., _Structure],
        args: Sequence[Any] = ...,
        kwargs: Mapping[str, Any] | None = ...,
        options: RunOptions | None = ...,
    ) -> _Structure: ...
    @final
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Call `fn` once for each replica, each with its part of the arguments.

        Inside `rx.function`, or if `fn` was made by it, the replicas are compiled into one program;
        otherwise each one is ordinary Python, run in turn.

        Args:
            fn: the replica function. `rx.get_replica_context()` in it tells which replica it is and
                lets it talk to the others.
            args: positional arguments. Of per-replica values, in structures too, each replica gets its
                part; everything else is the same for all.
            kwargs: keyword arguments, likewise.
            options: a `RunOptions`.

        Returns:
            The replicas' results merged into one structure, whose leaves are `PerReplica`, except for
            what is the same object on all replicas. With one replica: its result.

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
        require_cross_replica(self, "run()")
        given, named = _checked_call(fn, args, kwargs, options)
        padded = False
        for leaf in flatten((given, named))[0]:
            if isinstance(leaf, PerReplica):
                self._check_argument(leaf, options)
                padded = padded or leaf.example_mask is not None
        if isinstance(fn, Function):
            return in_replicas(self, fn)(*given, **named)
        return run(self, fn, given, named, padded=padded)

    def _check_argument(self, value: PerReplica, options: RunOptions | None) -> None:
        has, needs = value.num_components, len(self.mesh.local_replica_ids)
        if has is not None and has < needs and value.mesh in (None, self.mesh):
            raise IndexError(
                f"strategy.run got a PerReplica value with {has} components for {needs} replicas."
            )
        value.on(self.mesh)
        dynamic = options is None or options.experimental_enable_dynamic_batch_size
        if not dynamic and value.uniform is None:
            raise ValueError(
                "strategy.run got a per-replica argument whose shapes differ between replicas, which "
                "RunOptions(experimental_enable_dynamic_batch_size=False) rules out."
            )

    def _reduce(self, reduce_op: ReduceOpLike, value: Any, axis: Any) -> Any:
        require_cross_replica(self, "reduce()")
        op = ReduceOp.parse(reduce_op)
        leaves, treedef = flatten_values(value)
        return treedef.unflatten(reduce_leaves_over(self.communicator, op, leaves, axis))

    @overload
    def gather(self, value: _Untyped, axis: int) -> Any: ...
    @overload
    def gather(self, value: _Value, axis: int) -> jax.Array: ...
    @overload
    def gather(self, value: _Structure, axis: int) -> _Structure: ...
    @final
    def gather(self, value: Any, axis: int) -> Any:
        """Join the replicas' values along `axis`, in replica order.

        Args:
            value: a per-replica value or a structure of them; the sizes along `axis` may differ.
            axis: which axis to join along; negative counts from the end.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group[None])
        >>> strategy.gather(ids, axis=0)
        Array([0, 1], dtype=int32)
        """
        require_cross_replica(self, "gather()")
        leaves, treedef = flatten_values(value)
        return treedef.unflatten(gather_leaves(self.communicator, leaves, axis))

    @overload
    def local_results(self, value: _Untyped) -> tuple[Any, ...]: ...
    @overload
    def local_results(self, value: Variable) -> tuple[VariableCopy, ...]: ...
    @overload
    def local_results(self, value: PerReplica[_T] | Mirrored[_T]) -> tuple[_T, ...]: ...
    @overload
    def local_results(self, value: _Structure) -> tuple[_Structure, ...]: ...
    @final
    def local_results(self, value: Any) -> tuple[Any, ...]:
        """The parts of a distributed value that belong to this process's replicas, as a tuple.

        Args:
            value: what `run` returned, a variable, or a structure of such values; of anything else a
                tuple with just that is returned.

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

    def _input_target(self) -> Target:
        return Target(self.mesh, self.input_pipeline, committed=self.places_values)

    @overload
    def distribute_dataset(
        self, dataset: _Untyped | _Batches[_Untyped], options: InputOptions | None = ...
    ) -> DistributedDataset[Any]: ...
    @overload
    def distribute_dataset(
        self, dataset: _Batches[_Leaf], options: InputOptions | None = ...
    ) -> DistributedDataset[PerReplica[_Leaf]]: ...
    @overload
    def distribute_dataset(
        self, dataset: _Batches[_Structure], options: InputOptions | None = ...
    ) -> DistributedDataset[_Structure]: ...
    @overload
    def distribute_dataset(
        self, dataset: Any, options: InputOptions | None = ...
    ) -> DistributedDataset[Any]: ...
    @final
    def distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> DistributedDataset[Any]:
        """Split the batches of a dataset over the replicas, and prepare them in the background.

        Each batch of `dataset` is a global batch, for all replicas together. It is split along the first
        axis: sizes differ by at most one, and no example is left out, added or doubled.

        Args:
            dataset: a Grain `MapDataset`, `IterDataset` or `DataLoader`, a `tf.data.Dataset`, a torch
                `DataLoader`, `rx.from_arrays(...)`, `rx.from_files(...)`, a list of batches or anything
                else that can be iterated over repeatedly, a function that returns a new iterator, or an
                iterator, which gives one pass. Batches are arrays or structures of arrays.
            options: an `InputOptions`.

        Returns:
            A `DistributedDataset`. Loop over it once for each epoch.

        Raises:
            NotADatasetError: `dataset` is none of the above.
            InputError: a batch can't be split; raised when it is read.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = rx.from_arrays({"x": jnp.arange(5.0), "y": jnp.ones(5)}).batch(3)
        >>> for batch in strategy.distribute_dataset(dataset):
        ...     print([x.tolist() for x in strategy.local_results(batch["x"])])
        [[0.0, 1.0], [2.0]]
        [[3.0], [4.0]]
        """
        require_cross_replica(self, "distribute_dataset()")
        return distribute_dataset(dataset, self._input_target(), options)

    @overload
    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], _Batches[_Leaf]], options: InputOptions | None = ...
    ) -> DistributedDataset[PerReplica[_Leaf]]: ...
    @overload
    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], _Batches[_Structure]], options: InputOptions | None = ...
    ) -> DistributedDataset[_Structure]: ...
    @overload
    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = ...
    ) -> DistributedDataset[Any]: ...
    @final
    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset[Any]:
        """Distribute datasets that a function makes for each process, or for each replica.

        Batches are not split: each replica takes the next batch of its process's dataset, whose batch size
        is that of one replica. At the end of a dataset, a replica for which there is no batch gets an empty
        one.

        Args:
            dataset_fn: called with an `InputContext`, once for each process (or for each replica, with
                `InputReplicationMode.PER_REPLICA`); returns anything that `distribute_dataset` takes.
            options: an `InputOptions`.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def dataset_fn(context):
        ...     batch_size = context.get_per_replica_batch_size(4)
        ...     return rx.from_arrays(np.arange(8)).batch(batch_size)
        >>> for batch in strategy.distribute_datasets_from_function(dataset_fn):
        ...     print([x.tolist() for x in strategy.local_results(batch)])
        [[0, 1], [2, 3]]
        [[4, 5], [6, 7]]
        """
        require_cross_replica(self, "distribute_datasets_from_function()")
        return distribute_datasets_from_function(dataset_fn, self._input_target(), options)

    @cached_property
    def _host_batches(self) -> HostBatches:
        return HostBatches(self._input_target())

    @overload
    def distribute_batch(
        self, batch: _Leaf, partial_batch: _PartialBatch = ..., batch_size: int | None = ...
    ) -> PerReplica[_Leaf]: ...
    @overload
    def distribute_batch(
        self, batch: _Structure, partial_batch: _PartialBatch = ..., batch_size: int | None = ...
    ) -> _Structure: ...
    @final
    def distribute_batch(
        self,
        batch: Any,
        partial_batch: _PartialBatch = "exact",
        batch_size: int | None = None,
    ) -> Any:
        """Split a batch that the program makes itself, such as a sample from a replay buffer.

        The batch is for all replicas together. It is split like the batches of a dataset: along the first
        axis, in sizes that differ by at most one, and no example is left out, added or doubled. Its arrays
        are copied, so you may change them afterwards. With several workers, each passes the same global
        batch and uses its own replicas' rows of it; a worker's own data goes through
        `strategy.distribute_values_from_function`.

        Args:
            batch: an array, or a structure of arrays with one row for each example, in host memory or on a
                device.
            partial_batch: what to do if not every replica gets the same (or, with `batch_size`, the full)
                number of examples, as in `InputOptions`: "exact" gives every replica its true rows, "pad"
                fills up with rows that do not count, "error" raises.
            batch_size: how many examples a full batch has, for "pad" and "error". If sizes vary, "pad" with
                the largest one makes all steps share one compiled program.

        Returns:
            The structure of the batch, with per-replica values in place of arrays, for `strategy.run`. With
            one replica: arrays.

        Raises:
            InputError: not a batch, a batch that is already distributed, or one that `partial_batch` or
                `batch_size` rules out.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> batch = strategy.distribute_batch({"x": np.arange(3.0), "y": np.ones(3)})
        >>> [x.tolist() for x in strategy.local_results(batch["x"])]
        [[0.0, 1.0], [2.0]]
        >>> strategy.reduce("MEAN", strategy.run(lambda b: b["x"] ** 2, args=(batch,)), axis=0)
        Array(1.6666666, dtype=float32)
        """
        require_cross_replica(self, "distribute_batch()")
        return self._host_batches.distribute(batch, partial_batch, batch_size)

    @final
    def make_numpy_dataset(self, numpy_input: _T) -> ArrayDataset[_T]:
        """A dataset of the rows of arrays; the same as `rx.from_arrays`.

        Args:
            numpy_input: an array, or a structure of arrays with one row for each example.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = strategy.make_numpy_dataset((np.zeros((6, 2)), np.arange(6)))
        >>> strategy.distribute_dataset(dataset.batch(4)).cardinality
        2
        """
        return from_arrays(numpy_input)

    @overload
    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], _Untyped]) -> Any: ...
    @overload
    def distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], _Leaf]
    ) -> PerReplica[_Leaf]: ...
    @overload
    def distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], _Structure]
    ) -> _Structure: ...
    @final
    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """A per-replica value whose component for each replica is what `value_fn` returns.

        Args:
            value_fn: called for each replica of this process with a `ValueContext`. NumPy arrays that it
                returns are copied.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.distribute_values_from_function(lambda ctx: 10 * ctx.replica_id_in_sync_group)
        PerReplica:{
          0: 0,
          1: 10
        }
        """
        total = self.num_replicas_in_sync
        contexts = [ValueContext(i, total) for i in self.mesh.local_replica_ids]
        with enter_default():
            values = [map_leaves(_copied, value_fn(context)) for context in contexts]
        if self.answers.plain_values:
            return values[0]
        if self.mesh.num_logical_devices > 1:
            values = [_logical.on_all_devices(self.mesh, i, value) for i, value in enumerate(values)]
        return regroup_apart(values, self.mesh)

    @final
    def assign_to_logical_device(self, tensor: _T, logical_device_id: int) -> _T:
        """Say, in a replica function, which of the replica's devices shall have a value.

        The value does not change. XLA has no way to bind one operation to one device of a partitioned
        program, so the value is kept whole on *every* device of the replica, this one included: the devices
        compute it side by side, and none of them waits for another. It does not save memory or time; to
        divide work between devices use `split_to_logical_devices`.

        Args:
            tensor: an array, or a structure of arrays.
            logical_device_id: which device, counted from 0. Replicas of most strategies have one.

        Returns:
            The same value.

        Raises:
            ContextError: outside of a replica function.
            DeviceError: the replica has no such device. It is a `ValueError`.

        >>> topology = rx.Topology()
        >>> assignment = rx.DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=4)
        >>> strategy = rx.TPUStrategy(experimental_device_assignment=assignment)
        >>> def replica_fn(x):
        ...     return strategy.assign_to_logical_device(x + x, 1)
        >>> strategy.local_results(strategy.run(replica_fn, args=(jnp.float32(2),)))[0]
        Array(4., dtype=float32)
        """
        return _logical.assign(self, tensor, logical_device_id)

    @final
    def split_to_logical_devices(self, tensor: _T, partition_dimensions: Sequence[int]) -> _T:
        """Cut an array, in a replica function, into parts for the replica's devices.

        The value does not change. The devices hold a part each, and XLA divides what is computed from it
        between them: a convolution over images that are split in height and width runs on all devices, each
        with its tile.

        Args:
            tensor: an array, or a structure of arrays that are all split alike.
            partition_dimensions: into how many parts each axis is cut. There is one number for each axis,
                it divides the size of the axis, and the product of all is the number of the replica's
                devices.

        Returns:
            The same value.

        Raises:
            ContextError: outside of a replica function.
            DeviceError: the numbers do not fit the array or the devices. It is a `ValueError`.

        >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 2, 2, 2], num_replicas=1)
        >>> strategy = rx.TPUStrategy(experimental_device_assignment=assignment)
        >>> def replica_fn(images):
        ...     images = strategy.split_to_logical_devices(images, [1, 2, 4, 1])
        ...     return images.addressable_shards[0].data.shape, jnp.sum(images)
        >>> strategy.run(replica_fn, args=(jnp.ones((16, 8, 8, 3)),))
        ((16, 4, 2, 3), Array(3072., dtype=float32))
        """
        return _logical.split(self, tensor, partition_dimensions)

    @final
    def replicate_to_logical_devices(self, tensor: _T) -> _T:
        """Put a value, in a replica function, on each of the replica's devices as a whole.

        The value does not change. It is how values lie that were not split; use it to end a split, for
        example before a loss of which all devices need everything.

        Args:
            tensor: an array, or a structure of arrays.

        Returns:
            The same value.

        Raises:
            ContextError: outside of a replica function.

        >>> assignment = rx.DeviceAssignment.build(rx.Topology(), [1, 1, 1, 2], num_replicas=4)
        >>> strategy = rx.TPUStrategy(experimental_device_assignment=assignment)
        >>> def replica_fn(x):
        ...     x = strategy.split_to_logical_devices(x, [1, 2])
        ...     return strategy.replicate_to_logical_devices({"logits": x * 2})
        >>> strategy.local_results(strategy.run(replica_fn, args=(jnp.ones((2, 2)),)))[0]
        {'logits': Array([[2., 2.],
               [2., 2.]], dtype=float32)}
        """
        return _logical.replicate(self, tensor)

    @final
    def create_variable(self, *args: Any, **kwargs: Any) -> Variable:
        """Make a variable; what `rx.Variable(...)` calls, with the same arguments."""

        def make() -> Variable:
            frame = current_frame()
            with frame.creating():
                spec, value = prepare_variable(*args, **kwargs)
                spec, layout = self.answers.choose_layout(spec)
                if not self.mesh.is_local:
                    value = _of_first_replica(self, value)
                variable = Variable._make(spec, layout, self, jnp.copy(layout.place(value)))
            frame.adopt(variable)
            return variable

        replica = current().replica
        return make() if replica is None else replica.create(make)

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
    def reduce(self, reduce_op: ReduceOpLike, value: _Untyped, axis: _Axes) -> Any: ...
    @overload
    def reduce(self, reduce_op: ReduceOpLike, value: _Value, axis: _Axes) -> jax.Array: ...
    @overload
    def reduce(self, reduce_op: ReduceOpLike, value: _Structure, axis: _Axes) -> _Structure: ...
    @final
    def reduce(self, reduce_op: ReduceOpLike, value: Any, axis: Any) -> Any:
        """Combine a per-replica value into one array.

        Args:
            reduce_op: "SUM" or "MEAN".
            value: what `run` returned, or a structure of such values. A value that is the same for all
                replicas counts once for each of them.
            axis: None combines element by element. An int or a tuple of ints reduces over those axes
                inside each replica's value as well; MEAN then divides by the true number of elements, so
                it is right for replicas with different batch sizes.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def losses():
        ...     replica = int(rx.get_replica_context().replica_id_in_sync_group)
        ...     return jnp.full(3 - replica, float(replica))      # 3 examples, then 2
        >>> strategy.reduce("MEAN", strategy.run(losses), axis=0)
        Array(0.4, dtype=float32)
        """
        return self._reduce(reduce_op, value, axis)

    experimental_make_numpy_dataset = StrategyBase.make_numpy_dataset


def _of_first_replica(strategy: StrategyBase, value: jax.Array) -> jax.Array:
    """The first process's `value`, in all processes.

    A step that is being traced may create a variable. The value is sent at once, by a program that JAX does
    not run inside of another's trace; and traces belong to a thread, so it gets one of its own.
    """

    def send() -> jax.Array:
        own = PerReplica([value] * len(strategy.mesh.local_replica_ids), mesh=strategy.mesh)
        return strategy.communicator.first([own])[0].to_plain()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, send).result()


def _copied(leaf: Any) -> Any:
    """A NumPy array in memory of its own, which the caller can't change; anything else as it is."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _checked_call(fn: Any, args: Any, kwargs: Any, options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `strategy.run`, if they are what it takes."""
    if not callable(fn):
        raise TypeError(f"strategy.run needs a function to call, got {fn!r}.")
    if not isinstance(args, list | tuple):
        as_kwargs = ", or kwargs=batch if its keys are the names of the function's arguments"
        raise ValueError(
            f"strategy.run(fn, args=...) takes a tuple or list of arguments, got a "
            f"{type(args).__name__}. For one argument write args=(x,)"
            f"{as_kwargs if isinstance(args, Mapping) else ''}."
        )
    if not isinstance(kwargs, Mapping | None):
        raise TypeError(f"strategy.run(fn, kwargs=...) takes a dict of arguments, got {kwargs!r}.")
    if not isinstance(options, RunOptions | None):
        raise TypeError(f"strategy.run(fn, options=...) takes an rx.RunOptions, got {options!r}.")
    return tuple(args), dict(kwargs or {})
