"""The replica context: a replica's id, collectives and example mask."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, final

import jax
import jax.numpy as jnp

from replicax._jax import at_trace, current_program, eval_trace
from replicax.collectives import CommunicationOptions, checked_axis, merge_options
from replicax.contexts._examples import Examples
from replicax.contexts._exchange import Exchange, out_of_reach
from replicax.contexts._protocol import StrategyProtocol
from replicax.contexts._stack import current
from replicax.errors import CollectiveError
from replicax.types import ReduceOp, ReduceOpLike
from replicax.values import (
    IndexedSlices,
    Leaf,
    PerReplica,
    is_number,
    mirror_equal,
    remember_derived,
    remember_equal,
)

if TYPE_CHECKING:
    from replicax.strategies import Strategy

__all__ = ["ReplicaContext"]


class MergePoint(Protocol):
    """Implements `merge_call`, where a replica waits for the others, for one way of running replicas."""

    local_index: int
    base_trace: Any
    """The trace that the replicas were started in; None if they are traced as one program."""
    alike: bool
    """Whether it is known that all replicas have the same shapes."""

    def merge_call(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `merge_fn` once for all replicas and return this replica's part of its result."""
        ...

    def create(self, make: Callable[[], Any]) -> Any:
        """Call `make`, unless another replica has done so at this point; returns its result."""
        ...


@final
class ReplicaContext:
    """A replica function's view of its replica; `rx.get_replica_context()` returns it.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> def replica_fn():
    ...     ctx = rx.get_replica_context()
    ...     return ctx.all_reduce("SUM", ctx.replica_id_in_sync_group + 1.0)
    >>> strategy.local_results(strategy.run(replica_fn))
    (Array(3., dtype=float32), Array(3., dtype=float32))
    """

    __slots__ = ("_devices", "_examples", "_merge_point", "_replica_id", "_strategy")

    def __init__(
        self,
        strategy: StrategyProtocol,
        replica_id_in_sync_group: jax.Array | None = None,
        *,
        merge_point: MergePoint,
        devices: tuple[str, ...] = (),
        examples: Examples | None = None,
    ) -> None:
        """Create the context of one replica; of the only replica if there is no id."""
        self._strategy = strategy
        self._replica_id = replica_id_in_sync_group
        self._merge_point = merge_point
        self._devices = devices
        self._examples = examples

    def __repr__(self) -> str:
        return f"ReplicaContext(replica {self.replica_id_in_sync_group} of {self.num_replicas_in_sync})"

    @property
    def strategy(self) -> Strategy:
        """The strategy that runs this replica."""
        return cast("Strategy", self._strategy)

    @property
    def replica_id_in_sync_group(self) -> jax.Array:
        """The number of this replica, as an int32 array: 0 <= id < `num_replicas_in_sync`.

        In a compiled step it is traced, since one program serves all replicas: use it in `jnp`
        computations, not as a Python number.
        """
        current().frame.require_own_trace()
        own = self._replica_id
        return self._strategy.replica_ids[0] if own is None else own

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas in all processes."""
        return self._strategy.num_replicas_in_sync

    @property
    def _axis_name(self) -> str:
        """The name of the replica axis, for `jax.lax.pmean(x, axis_name)` and similar functions."""
        return self._strategy.mesh.axis_name

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of this replica's devices; in a compiled step, those of all replicas."""
        return self._devices

    @property
    def example_mask(self) -> Any:
        """Which rows of this replica's batch are examples, if it was padded; otherwise None.

        Batches are padded by a dataset that was distributed with `InputOptions(partial_batch="pad")`. None
        means that every row is an example, so you can always pass the mask as `where=` to `jnp.sum` and
        similar functions. If the replica got several padded batches, this is an error: pass the mask of the
        batch that you mean as another argument, `strategy.run(fn, args=(a, b, a.example_mask))`.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = rx.from_arrays(jnp.arange(1.0, 6.0)).batch(4)           # 1 2 3 4, then 5
        >>> padded = strategy.distribute_dataset(dataset, rx.InputOptions(partial_batch="pad"))
        >>> def replica_sum(x):
        ...     return jnp.sum(x, where=rx.get_replica_context().example_mask)
        >>> [strategy.reduce("SUM", strategy.run(replica_sum, args=(x,)), axis=None) for x in padded]
        [Array(10., dtype=float32), Array(5., dtype=float32)]
        """
        current().frame.require_own_trace()
        return None if self._examples is None else self._examples.only_mask(current().rows)

    def rng(self, key: jax.Array) -> jax.Array:
        """A different random key for each replica, derived from a common one.

        For randomness that does not depend on the number of replicas, use `rx.example_keys`.

        Args:
            key: a key, such as `jax.random.key(0)`.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def replica_fn():
        ...     return jax.random.bits(rx.get_replica_context().rng(jax.random.key(0)))
        >>> first, second = strategy.local_results(strategy.run(replica_fn))
        >>> first != second
        Array(True, dtype=bool)
        """
        return jax.random.fold_in(key, self.replica_id_in_sync_group)

    @property
    def local_index(self) -> int:
        """The position of this replica among those of this process."""
        return self._merge_point.local_index

    @property
    def _index(self) -> int:
        """The number of this replica; undefined for replicas that share one trace."""
        return self._strategy.mesh.local_replica_ids[self.local_index]

    @property
    def _is_one_program(self) -> bool:
        """Whether all replicas are traced as one program."""
        return self._merge_point.base_trace is None

    @property
    def _are_alike(self) -> bool:
        """Whether it is known that all replicas have the same shapes."""
        return self._merge_point.alike

    @property
    def _is_eager(self) -> bool:
        """Whether this replica runs as ordinary Python, rather than being traced."""
        return self._merge_point.base_trace is eval_trace

    @property
    def _is_in_run(self) -> bool:
        """Whether a `strategy.run` made this context; False outside of all strategies."""
        return self._replica_id is not None

    def _can_wait(self) -> bool:
        """Whether this replica can wait for the others here; it can't inside a function that JAX stages."""
        base = self._merge_point.base_trace
        if base is None:
            return True
        with at_trace(base):
            program = current_program()
        return current_program() is program

    def create(self, make: Callable[[], Any]) -> Any:
        """Create one object for all replicas: only the first one calls `make`."""
        return self._merge_point.create(make)

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Wait for all replicas, then call `merge_fn` once in the cross-replica context.

        Args:
            merge_fn: called as `merge_fn(strategy, *args, **kwargs)` with the merged arguments of all
                replicas: values that differ between replicas are `PerReplica`; results of `all_reduce` and
                `all_gather`, which do not, are `Mirrored`.
            args: this replica's positional arguments.
            kwargs: this replica's keyword arguments.

        Returns:
            What `merge_fn` returned, with this replica's part in place of distributed values.

        Raises:
            ContextError: the replicas do not all make the same merge_calls.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def largest(strategy, x):
        ...     return jnp.max(jnp.stack(strategy.local_results(x)))
        >>> def replica_fn():
        ...     ctx = rx.get_replica_context()
        ...     return ctx.merge_call(largest, args=(ctx.replica_id_in_sync_group * 7,))
        >>> strategy.run(replica_fn)
        Array(7, dtype=int32)
        """
        if not callable(merge_fn):
            raise TypeError(f"merge_call needs a function to call, got {merge_fn!r}.")
        if not isinstance(getattr(merge_fn, "__self__", None), Exchange | Leaf):  # not one of our own
            if self._examples is not None:
                event = self._examples.next_event()
                merge_fn = functools.partial(_call_with_masks, merge_fn, self._examples, event)
            merge_fn = functools.partial(_call_with_mirrored, merge_fn)
        return self._merge_point.merge_call(merge_fn, tuple(args), dict(kwargs or {}))

    def all_reduce(
        self,
        reduce_op: ReduceOpLike,
        value: Any,
        options: CommunicationOptions | None = None,
        experimental_hints: Any = None,
    ) -> Any:
        """Sum or average `value` over all replicas; every replica gets the result.

        Reduce many arrays in one call: that is much faster than one call for each array. Differentiable:
        the gradient of a sum is the sum of the replicas' gradients.

        Args:
            reduce_op: "SUM" or "MEAN".
            value: an array or a structure of arrays (and `IndexedSlices`), with the same structure and
                shapes on all replicas.
            options: a `CommunicationOptions`.
            experimental_hints: the older spelling of `options`.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def replica_fn(x):
        ...     return rx.get_replica_context().all_reduce("MEAN", {"x": x, "one": 1.0})
        >>> x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group * 4.0)
        >>> strategy.local_results(strategy.run(replica_fn, args=(x,)))[0]
        {'one': Array(1., dtype=float32), 'x': Array(2., dtype=float32)}
        """
        op = ReduceOp.parse(reduce_op)
        chosen = merge_options(options, experimental_hints)
        leaves, treedef = _flatten_numbers(value, "all_reduce")
        sparse = [i for i, leaf in enumerate(leaves) if isinstance(leaf, IndexedSlices)]
        dense = [leaf for leaf in leaves if not isinstance(leaf, IndexedSlices)]
        results = iter(self._exchange(_Reduce, op, chosen)(dense) if dense else [])
        reduced = [
            self._reduce_rows(op, leaf) if i in sparse else next(results) for i, leaf in enumerate(leaves)
        ]
        return treedef.unflatten(reduced)

    def _reduce_rows(self, op: ReduceOp, rows: IndexedSlices) -> IndexedSlices:
        values, indices = self._exchange(_Gather, 0)([rows.values, rows.indices])
        if op is ReduceOp.MEAN:
            values = remember_derived(values / self.num_replicas_in_sync, values, "mean")
        return IndexedSlices(values, indices, rows.dense_shape)

    def all_gather(self, value: Any, axis: int, options: CommunicationOptions | None = None) -> Any:
        """Concatenate the values of all replicas along `axis`, in replica order.

        The sizes along `axis` may differ between replicas. Differentiable: a replica's gradient is its
        slice of the sum of the replicas' gradients.

        Args:
            value: an array or a structure of arrays.
            axis: the axis to concatenate along; negative counts from the end.
            options: a `CommunicationOptions`. There is only one algorithm for gathering, so only its
                timeout applies.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def replica_fn():
        ...     ctx = rx.get_replica_context()
        ...     return ctx.all_gather(jnp.array([ctx.replica_id_in_sync_group]), axis=0)
        >>> strategy.local_results(strategy.run(replica_fn))[0]
        Array([0, 1], dtype=int32)
        """
        leaves, treedef = _flatten_numbers(value, "all_gather")
        if any(isinstance(leaf, IndexedSlices) for leaf in leaves):
            raise NotImplementedError(
                "all_gather does not take IndexedSlices; gather their values and indices, or use "
                "all_reduce, which concatenates the rows."
            )
        chosen = merge_options(options, None)
        gathered = [
            self._exchange(_Gather, checked_axis(axis, leaf, "all_gather"), chosen)([leaf])[0]
            for leaf in leaves
        ]
        return treedef.unflatten(gathered)

    def _exchange(self, kind: Any, *args: Any) -> Callable[[Sequence[Any]], list[Any]]:
        exchange = kind(self, *args)
        if self._is_one_program:
            return exchange.exchange
        current().frame.require_own_trace()  # a cached trace would use the replicas of an earlier run
        return exchange


def _call_with_mirrored(
    merge_fn: Callable[..., Any], strategy: StrategyProtocol, /, *args: Any, **kwargs: Any
) -> Any:
    args, kwargs = mirror_equal((args, kwargs))
    return merge_fn(strategy, *args, **kwargs)


def _call_with_masks(
    merge_fn: Callable[..., Any],
    examples: Examples,
    event: int,
    strategy: StrategyProtocol,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    args, kwargs = examples.merged(event, (args, kwargs), strategy.mesh)
    return merge_fn(strategy, *args, **kwargs)


def _flatten_numbers(value: Any, what: str) -> tuple[list[Any], Any]:
    def is_leaf(x: Any) -> bool:
        return x is None or isinstance(x, IndexedSlices | PerReplica)

    leaves, treedef = jax.tree.flatten(value, is_leaf=is_leaf)
    arrays = []
    for leaf in leaves:
        if isinstance(leaf, IndexedSlices):
            arrays.append(leaf)
        elif is_number(leaf) or hasattr(type(leaf), "__jax_array__"):
            arrays.append(leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf))
        else:
            raise CollectiveError(f"{what} takes arrays and numbers, got {leaf!r}.")
    return arrays, treedef


@final
class _Reduce(Exchange):
    """All-reduce; its own transpose."""

    name = "all_reduce"

    def __init__(self, context: ReplicaContext, op: ReduceOp, options: Any) -> None:
        super().__init__(context._merge_point.base_trace)
        self._context, self._op, self._options = context, op, options

    def exchange(self, values: Sequence[Any]) -> list[Any]:
        return list(self._context.merge_call(self._merge, args=tuple(values)))

    def _merge(self, strategy: StrategyProtocol, *values: Any) -> list[Any]:
        communicator = strategy.communicator
        reduced = communicator.reduce(self._op, values, self._options)
        return [remember_equal(communicator.mirrored(value)) for value in reduced]

    def linear(self) -> Exchange:
        return self

    def transpose(self) -> Exchange:
        return self

    def result_shapes(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return list(shapes)


@final
class _Gather(Exchange):
    """All-gather along one axis; its transpose sums and returns the replica's own slice."""

    name = "all_gather"

    def __init__(self, context: ReplicaContext, axis: int, options: Any = None) -> None:
        super().__init__(context._merge_point.base_trace)
        self._context, self._axis, self._options = context, axis, options
        self._sizes: list[tuple[int, int, int]] = []

    def exchange(self, values: Sequence[Any]) -> list[Any]:
        joined = self._context.merge_call(self._merge, args=tuple(values))
        results = [whole for whole, _ in joined]
        self._sizes = [
            (value.shape[self._axis], offset, whole.shape[self._axis])
            for value, (whole, offset) in zip(values, joined, strict=True)
        ]
        return results

    def _merge(self, strategy: StrategyProtocol, *values: Any) -> list[Any]:
        communicator = strategy.communicator
        held = map(communicator.on_each, values)
        gathered = [communicator.gather(value, self._axis, self._options) for value in held]
        return [(remember_equal(whole), offset) for whole, offset in gathered]

    def linear(self) -> Exchange:
        return self

    def transpose(self) -> Exchange:
        return _Scatter(self._context, self._axis, self._sizes)

    def result_shapes(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        if not self._sizes:
            raise out_of_reach()
        return [
            _resized(shape, self._axis, size[2]) for shape, size in zip(shapes, self._sizes, strict=True)
        ]


@final
class _Scatter(Exchange):
    """The transpose of a gather: sum over the replicas, then this replica's slice."""

    name = "the gradient of all_gather"

    def __init__(self, context: ReplicaContext, axis: int, sizes: list[tuple[int, int, int]]) -> None:
        super().__init__(context._merge_point.base_trace)
        self._context, self._axis, self._sizes = context, axis, sizes

    def exchange(self, values: Sequence[Any]) -> list[Any]:
        sums = self._context.all_reduce(ReduceOp.SUM, list(values))
        return [
            jax.lax.dynamic_slice_in_dim(total, offset, size, self._axis % total.ndim)
            for total, (size, offset, _) in zip(sums, self._sizes, strict=True)
        ]

    def linear(self) -> Exchange:
        return self

    def transpose(self) -> Exchange:
        gather = _Gather(self._context, self._axis)
        gather._sizes = self._sizes
        return gather

    def result_shapes(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [
            _resized(shape, self._axis, size[0]) for shape, size in zip(shapes, self._sizes, strict=True)
        ]


def _resized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    resized = list(shape)
    resized[axis] = size
    return tuple(resized)
