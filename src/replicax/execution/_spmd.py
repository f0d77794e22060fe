"""Compiled replicas: the replica function is traced once, and the program runs on every replica.

`strategy.run` inside `rx.function` becomes a `shard_map` over the axis of the replicas. Per-replica
arguments are its sharded inputs; everything else is closed over. One trace serves all replicas, so the
function of a `merge_call` is called inline, with per-replica values that wrap replica-local tracers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from replicax._jax import plain, traces_of
from replicax.collectives import EarlySums, collect_early_sums
from replicax.contexts import ExplainUnboundAxis, Padding, ReplicaContext, StrategyProtocol, current, enter
from replicax.execution._program import ProgramFrame, ReplicaFrame
from replicax.execution._traced_values import explain_traced_values
from replicax.topology import ReplicaMesh
from replicax.values import (
    Component,
    Mirrored,
    PerReplica,
    flatten,
    is_array,
    map_leaves,
    select,
)
from replicax.variables import MAX_SPLIT_AXES, Deferred, Layout, Variable, use_frame

__all__ = ["run_inline", "run_spmd"]


def run_spmd(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    frame: ProgramFrame,
    padding: Padding | None = None,
) -> Any:
    """Trace `fn` once for all replicas of `strategy`; `padding` has the masks of padded arguments."""
    mesh = strategy.mesh
    leaves, treedef = flatten((args, kwargs))
    sharded = [i for i, leaf in enumerate(leaves) if isinstance(leaf, PerReplica)]
    globals_ = [leaves[i].to_global(mesh) for i in sharded]
    parts = [v for v in frame.known if v.layout.is_split and v.mesh == mesh]
    traced = _Traced()

    def body(arrays: list[Any], cells: list[Any], local_masks: list[Any]) -> Any:
        inner = list(leaves)
        for i, array, (_, scalar) in zip(sharded, arrays, globals_, strict=True):
            inner[i] = array.reshape(()) if scalar else array
        inner = [leaf.whole if isinstance(leaf, Mirrored) else leaf for leaf in inner]
        local_cells = {
            v.ref(): v.layout.part_cell(part, v._spec) for v, part in zip(parts, cells, strict=True)
        }
        replica = ReplicaFrame(frame, mesh, local_cells)
        # Tag inner traces, so that JAX does not reuse one from another context; see `FreshTraceNeeded`.
        here = ("replica", mesh.num_replicas, frame.tag)
        place = traces_of(*here) if not frame.fresh else contextlib.nullcontext()
        with use_frame(replica), place, collect_early_sums() as early:
            inner_args, inner_kwargs = treedef.unflatten(inner)
            result = _call(strategy, fn, inner_args, inner_kwargs, padding, local_masks)
        return traced.outputs(result, replica, early)

    split, whole = _splits(mesh), PartitionSpec()
    results, sums, state = jax.shard_map(
        body,
        mesh=mesh.mesh,
        in_specs=(split[0], [split[v.layout.split_axis] for v in parts], split[0]),
        out_specs=(split[0], whole, (whole, split)),
        axis_names={mesh.axis_name},
        check_vma=False,
    )(
        [array for array, _ in globals_],
        [frame.array(v) for v in parts],
        [mask.to_global(mesh)[0] for mask in padding.masks] if padding else [],
    )
    results, sums, state = jax.tree.map(plain, (results, sums, state))
    traced.store(state, frame)
    return traced.result(results, sums, mesh)


def _call(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    padding: Padding | None,
    masks: Sequence[Any],
) -> Any:
    """Call `fn` in the replica context that represents all replicas."""
    mesh = strategy.mesh
    names = tuple(name for row in mesh.device_names for name in row)
    replica_id = lax.axis_index(mesh.axis_name)
    shared = [PerReplica.from_local(mask, mesh) for mask in masks]
    examples = padding and padding.examples(masks, shared)
    context = ReplicaContext(
        strategy, replica_id, merge_point=_SpmdReplica(strategy), devices=names, examples=examples
    )
    explained = ExplainUnboundAxis(mesh.axis_name)
    with enter(current().inner(strategy, context)), explain_traced_values(_NO_VALUES), explained:
        return fn(*args, **kwargs)


_NO_VALUES = (
    "A compiled replica function used a traced value as a Python number (in `if`, `int()`, `range()`, an "
    "index of a list, ...). One program serves all replicas, so the replica id and everything computed "
    "from arguments has no value yet. Choose with `jnp.where` or `jax.lax.cond`, pass what differs between "
    "replicas as an argument made by `strategy.distribute_values_from_function`, or leave out "
    "`rx.function` to run eagerly."
)


def run_inline(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    padding: Padding | None = None,
) -> Any:
    """`strategy.run` inside a merge_call of compiled replicas, which is part of their program."""
    masks = [mask.select(0) for mask in padding.masks] if padding else []
    result = _call(strategy, fn, select(args, 0), select(kwargs, 0), padding, masks)
    return _as_values(result, strategy.mesh)


def _as_values(structure: Any, mesh: Any) -> Any:
    """A replica's values as seen from the cross-replica context."""

    def wrap(leaf: Any) -> Any:
        if isinstance(leaf, Component):
            return leaf.container
        return PerReplica.from_local(jnp.asarray(leaf), mesh) if is_array(leaf) else leaf

    return map_leaves(wrap, structure)


@final
class _SpmdReplica:
    """The merge point of compiled replicas."""

    local_index = 0
    base_trace = None

    def __init__(self, strategy: StrategyProtocol) -> None:
        self._strategy = strategy

    def merge_call(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `merge_fn` inline."""
        args, kwargs = _as_values((args, kwargs), self._strategy.mesh)
        with enter(current().inner(self._strategy)):
            return select(merge_fn(self._strategy, *args, **kwargs), 0)

    def create(self, make: Callable[[], Any]) -> Any:
        """Create a variable: there is only one trace."""
        return make()


def _splits(mesh: ReplicaMesh) -> tuple[PartitionSpec, ...]:
    """For each axis, the spec of an array that is split along it."""
    return tuple(PartitionSpec(*[None] * axis, mesh.axis_name) for axis in range(MAX_SPLIT_AXES))


@final
class _State:
    """Arrays that leave the replicas as equal copies, or as parts that are split along some axis.

    `shard_map` must know how its outputs are split before it traces the replicas, so there is one list for
    each split.
    """

    def __init__(self) -> None:
        self._lists: list[list[Any]] = []
        self.arrays: tuple[list[Any], tuple[list[Any], ...]] = (
            [],
            tuple([] for _ in range(MAX_SPLIT_AXES)),
        )

    def add(self, array: Any, layout: Layout | None) -> None:
        """Add a part if `layout` is split or the value is per-replica, else an equal copy."""
        whole, parts = self.arrays
        chosen = parts[layout.split_axis] if layout is not None and layout.is_split else whole
        if isinstance(array, PerReplica):
            chosen, array = parts[0], jnp.atleast_1d(array.select(0))
        chosen.append(array)
        self._lists.append(chosen)

    def in_order(self, arrays: Any) -> Iterator[Any]:
        """The arrays outside of the replicas, in the order in which they were added."""
        inside = [self.arrays[0], *self.arrays[1]]
        outside = {id(a): iter(b) for a, b in zip(inside, [arrays[0], *arrays[1]], strict=True)}
        return (next(outside[id(chosen)]) for chosen in self._lists)


def _outside(inside: Any, layout: Layout | None, array: Any) -> Any:
    """The whole contribution to a deferred update, from the `array` that the replicas returned."""
    if isinstance(inside, PerReplica):
        return PerReplica.from_global(array, inside.mesh, scalar=jnp.ndim(inside.select(0)) == 0)
    if layout is None:
        return array
    cell = layout.wrap(array, False)
    assert isinstance(cell, Mirrored)
    return cell.whole


@final
class _Traced:
    """What the trace of a replica function returned, apart from arrays."""

    def __init__(self) -> None:
        self._leaves: list[Any] = []
        self._scalars: dict[int, bool] = {}
        self._treedef: Any = None
        self._written: list[Variable] = []
        self._deferred: list[Deferred] = []
        self._state = _State()

    def outputs(self, result: Any, replica: ReplicaFrame, early: EarlySums) -> tuple[Any, Any, Any]:
        """The outputs of `shard_map`: results, known sums of them, the state."""
        self._leaves, self._treedef = flatten(result)
        arrays, sums = [], {}
        for i, leaf in enumerate(self._leaves):
            if isinstance(leaf, Component):
                self._leaves[i] = leaf.container
            elif is_array(leaf):
                array = jnp.asarray(leaf)
                if (total := early.sum_of(leaf)) is not None:
                    sums[i] = total
                self._scalars[i] = array.ndim == 0
                arrays.append(array.reshape((1,)) if array.ndim == 0 else array)
        self._written = list(replica.written.values())
        for variable in self._written:
            self._state.add(replica.local_output(variable), variable.layout)
        self._deferred = replica.deferred
        for update in self._deferred:
            for array, layout in zip(update.arrays, update.layouts, strict=True):
                self._state.add(array, layout)
        return arrays, sums, self._state.arrays

    def store(self, state: Any, frame: ProgramFrame) -> None:
        """Store the variables that the replicas have written, and make the updates that they deferred."""
        arrays = self._state.in_order(state)
        for variable in self._written:
            frame.store(variable, variable.layout.wrap(next(arrays), not variable.shape))
        for update in self._deferred:
            contributed = zip(update.arrays, update.layouts, strict=True)
            update.update([_outside(inside, layout, next(arrays)) for inside, layout in contributed])

    def result(self, arrays: Any, sums: dict[int, Any], mesh: Any) -> Any:
        """The result of the replica function, as per-replica values."""
        leaves = list(self._leaves)
        for (i, scalar), array in zip(self._scalars.items(), arrays, strict=True):
            leaves[i] = PerReplica.from_global(array, mesh, scalar=scalar)
            leaves[i].known_sum = sums.get(i)
        return self._treedef.unflatten(leaves)
