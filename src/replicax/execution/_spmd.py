"""Compiled replicas: the replica function is traced once, and the program runs on every replica.

`strategy.run` inside `rx.function` becomes a `shard_map` over the replica axis. Per-replica arguments are
its sharded inputs; everything else is closed over. One trace serves all replicas, so the function of a
`merge_call` is called inline, with per-replica values that wrap replica-local tracers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from replicax._jax import plain, staged, traces_of
from replicax.collectives import EarlySums, collect_early_sums
from replicax.contexts import (
    Exchange,
    Padding,
    ReplicaContext,
    StrategyProtocol,
    current,
    enter,
)
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

__all__ = ["ReplicaRun", "Traced", "run_inline", "run_spmd"]


def run_spmd(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    frame: ProgramFrame,
    padding: Padding | None = None,
) -> Any:
    """Trace `fn` once for all replicas of `strategy`; `padding` has the masks of padded arguments."""
    run, traced = ReplicaRun(strategy, fn, args, kwargs, frame, padding), Traced()
    globals_ = [value.to_global(run.mesh) for value in run.per_replica]

    def body(arrays: list[Any], cells: list[Any], masks: list[Any]) -> Any:
        own = [x.reshape(()) if scalar else x for x, (_, scalar) in zip(arrays, globals_, strict=True)]
        return run.trace(traced, own, cells, masks)

    results, sums, state = run.map(body, [array for array, _ in globals_])
    traced.store(state, frame)
    return traced.result(results, sums, run.mesh)


@final
class ReplicaRun:
    """A `strategy.run` in a step: traces the replica function, and maps it over the devices."""

    def __init__(
        self,
        strategy: StrategyProtocol,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        frame: ProgramFrame,
        padding: Padding | None = None,
    ) -> None:
        self.mesh = strategy.mesh
        self._strategy, self._fn, self._frame, self._padding = strategy, fn, frame, padding
        leaves, self._treedef = flatten((args, kwargs))
        self._leaves = [leaf.whole if isinstance(leaf, Mirrored) else leaf for leaf in leaves]
        self._sharded = [i for i, leaf in enumerate(leaves) if isinstance(leaf, PerReplica)]
        self.per_replica: list[PerReplica] = [leaves[i] for i in self._sharded]
        self._parts = [v for v in frame.known if v.layout.is_split and v.mesh == self.mesh]

    def trace(
        self, traced: Traced, arrays: list[Any], cells: list[Any], masks: list[Any], *, alike: bool = True
    ) -> Any:
        """Call the replica function with this replica's `arrays`, parts of variables and masks.

        `alike`: whether the replicas have the same shapes.
        """
        frame, mesh, leaves = self._frame, self.mesh, list(self._leaves)
        for i, array in zip(self._sharded, arrays, strict=True):
            leaves[i] = array
        parts = zip(self._parts, cells, strict=True)
        local_cells = {v.ref(): v.layout.part_cell(part, v._spec) for v, part in parts}
        replica = ReplicaFrame(frame, mesh, local_cells, alike=alike)
        # Tag inner traces, so that JAX does not reuse one from another context; see `FreshTraceNeeded`.
        here = ("replica", mesh.num_replicas, frame.tag)
        place = traces_of(*here) if not frame.fresh else contextlib.nullcontext()
        with use_frame(replica), place, collect_early_sums() as early:
            args, kwargs = self._treedef.unflatten(leaves)
            result = _call(self._strategy, self._fn, args, kwargs, replica, self._padding, masks)
        return traced.outputs(result, replica, early)

    def map(self, body: Callable[..., Any], arrays: list[Any]) -> Any:
        """Map `body(arrays, parts of variables, masks)` over the replicas with `shard_map`."""
        mesh, masks = self.mesh, self._padding.masks if self._padding else []
        split, whole = _splits(mesh), PartitionSpec()
        outputs = jax.shard_map(
            body,
            mesh=mesh.mesh,
            in_specs=(split[0], [split[v.layout.split_axis] for v in self._parts], split[0]),
            out_specs=(split[0], whole, (whole, split)),
            axis_names={mesh.axis_name},
            check_vma=False,
        )(
            arrays,
            [self._frame.array(v) for v in self._parts],
            [mask.to_global(mesh)[0] for mask in masks],
        )
        return jax.tree.map(plain, outputs)


def _call(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    frame: ReplicaFrame,
    padding: Padding | None,
    masks: Sequence[Any],
) -> Any:
    """Call `fn` in the replica context that represents all replicas."""
    mesh = strategy.mesh
    names = tuple(name for row in mesh.device_names for name in row)
    replica_id = lax.axis_index(mesh.axis_name)
    shared = [PerReplica.from_local(mask, mesh) for mask in masks]
    examples = padding and padding.examples(masks, shared)
    merge_point = _SpmdReplica(strategy, frame)
    context = ReplicaContext(
        strategy, replica_id, merge_point=merge_point, devices=names, examples=examples
    )
    with enter(current().inner(strategy, context)), explain_traced_values(_NO_VALUES):
        return fn(*args, **kwargs)


_NO_VALUES = (
    "A compiled replica function used a traced value as a Python number (in `if`, `int()`, `range()`, an "
    "index of a list, ...). One program serves all replicas, so the replica id and everything computed "
    "from arguments has no value yet. Use `jnp.where` or `jax.lax.cond`, pass what differs between "
    "replicas as an argument made by `strategy.distribute_values_from_function`, or leave out "
    "`rx.function` to run eagerly."
)


def run_inline(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    frame: ReplicaFrame,
    padding: Padding | None = None,
) -> Any:
    """`strategy.run` inside a merge_call of compiled replicas, which is part of their program."""
    masks = [mask.select(0) for mask in padding.masks] if padding else []
    result = _call(strategy, fn, select(args, 0), select(kwargs, 0), frame, padding, masks)
    return _as_values(result, strategy.mesh, alike=frame.alike)


def _as_values(structure: Any, mesh: ReplicaMesh, *, alike: bool = True) -> Any:
    """A replica's values as seen from the cross-replica context."""

    def wrap(leaf: Any) -> Any:
        if isinstance(leaf, Component):
            return leaf.container
        if not is_array(leaf):
            return leaf
        # If the replicas are not alike, constants may differ, so hide from JAX that they are constants.
        return PerReplica.from_local(jnp.asarray(leaf) if alike else staged(leaf), mesh)

    return map_leaves(wrap, structure)


@final
class _SpmdReplica:
    """The merge point of compiled replicas."""

    local_index = 0
    base_trace = None

    def __init__(self, strategy: StrategyProtocol, frame: ReplicaFrame) -> None:
        self._strategy, self._frame = strategy, frame
        self.alike = frame.alike

    def merge_call(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call `merge_fn` inline."""
        args, kwargs = _as_values((args, kwargs), self._strategy.mesh, alike=self.alike)
        with enter(current().inner(self._strategy)):
            result = merge_fn(self._strategy, *args, **kwargs)
        if not self.alike and not isinstance(getattr(merge_fn, "__self__", None), Exchange):
            self._frame.note_merged(flatten(result)[0])
        return select(result, 0)

    def create(self, make: Callable[[], Any]) -> Any:
        """Create a variable: there is only one trace."""
        return make()


def _splits(mesh: ReplicaMesh) -> tuple[PartitionSpec, ...]:
    """For each axis, the spec of an array that is sharded along it."""
    return tuple(PartitionSpec(*[None] * axis, mesh.axis_name) for axis in range(MAX_SPLIT_AXES))


@final
class _State:
    """Arrays that the replicas return as equal copies, or as parts sharded along some axis.

    `shard_map` must know the specs of its outputs before it traces the replicas, so there is one list for
    each spec.
    """

    def __init__(self) -> None:
        self._lists: list[list[Any]] = []
        self.arrays: tuple[list[Any], tuple[list[Any], ...]] = (
            [],
            tuple([] for _ in range(MAX_SPLIT_AXES)),
        )

    def add(self, array: Any, layout: Layout | None) -> None:
        """Add a part, if `layout` is split or the value is per-replica, or an equal copy."""
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
    """The full contribution to a deferred update, from the `array` that the replicas returned."""
    if isinstance(inside, PerReplica):
        return PerReplica.from_global(array, inside.mesh, scalar=jnp.ndim(inside.select(0)) == 0)
    if layout is None:
        return array
    cell = layout.wrap(array, False)
    assert isinstance(cell, Mirrored)
    return cell.whole


@final
class Traced:
    """What the trace of a replica function returned, apart from arrays."""

    def __init__(self) -> None:
        self._leaves: list[Any] = []
        self._scalars: dict[int, bool] = {}
        self._treedef: Any = None
        self._written: list[Variable] = []
        self._deferred: list[Deferred] = []
        self._state = _State()
        self.merged: list[Any] = []
        """What merge functions returned, equal on all replicas; noted only if replicas are not alike."""

    def outputs(self, result: Any, replica: ReplicaFrame, early: EarlySums) -> tuple[Any, Any, Any]:
        """The outputs of `shard_map`: the results, early sums of them, and the state."""
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
        self.merged = replica.merged
        return arrays, sums, self._state.arrays

    def is_like(self, other: Traced) -> bool:
        """Whether both traces return the same structure and write the same variables."""
        return (
            (self._treedef, self._scalars) == (other._treedef, other._scalars)
            and list(map(id, self._written)) == list(map(id, other._written))
            and len(self._deferred) == len(other._deferred)
            and all(map(_are_alike, self._leaves, other._leaves))
        )

    def store(self, state: Any, frame: ProgramFrame) -> None:
        """Store the variables that the replicas wrote, and make the updates that they deferred."""
        arrays = self._state.in_order(state)
        for variable in self._written:
            frame.store(variable, variable.layout.wrap(next(arrays), not variable.shape))
        for update in self._deferred:
            contributed = zip(update.arrays, update.layouts, strict=True)
            update.update([_outside(inside, layout, next(arrays)) for inside, layout in contributed])

    def result(self, arrays: Any, sums: dict[int, Any], mesh: ReplicaMesh, shapes: Any = None) -> Any:
        """The result of the replica function, as per-replica values.

        `shapes` has a shape for each array and replica, if the replicas are not alike.
        """
        leaves = list(self._leaves)
        for n, ((i, scalar), array) in enumerate(zip(self._scalars.items(), arrays, strict=True)):
            if shapes is None or len(set(shapes[n])) == 1:
                leaves[i] = PerReplica.from_global(array, mesh, scalar=scalar)
            else:
                leaves[i] = PerReplica.sliced_from(array, mesh, shapes[n])
            leaves[i].known_sum = sums.get(i)
        return self._treedef.unflatten(leaves)


def _are_alike(leaf: Any, other: Any) -> bool:
    """Whether two leaves are arrays, or the same object."""
    if is_array(leaf) and is_array(other):
        return True
    return leaf is other or (isinstance(leaf, bool | int | float | str) and leaf == other)
