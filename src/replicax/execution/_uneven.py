"""Compiled replicas with different numbers of rows, where each device computes only its own rows.

The replica function is traced once for each combination of shapes, as if all replicas had those shapes, and
the traces are woven into one program (`_weaving.py`). So a trace must not assume that all replicas are
alike: constants are reduced like other values (`ReplicaFrame.alike`), and what is equal on all replicas
must be computed in the same way in all traces. Otherwise `CannotWeave` is raised, and the replicas are
traced one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from replicax.contexts import StrategyProtocol
from replicax.execution._numbering import CannotWeave, Name, Numbering, Program
from replicax.execution._program import ProgramFrame
from replicax.execution._spmd import ReplicaRun, Traced
from replicax.execution._weaving import weave
from replicax.values import PerReplica

__all__ = ["run_uneven"]

_Shapes = tuple[tuple[int, ...], ...]
"""The shapes of one replica's arguments."""


def run_uneven(
    strategy: StrategyProtocol, fn: Callable[..., Any], args: Any, kwargs: Any, frame: ProgramFrame
) -> Any:
    """Trace `fn` once for each combination of shapes of the replicas' arguments.

    Raises:
        CannotWeave: one program can't serve all replicas.
    """
    run = ReplicaRun(strategy, fn, args, kwargs, frame)
    if run.mesh.num_logical_devices > 1:
        raise CannotWeave("each replica has several devices")
    arrays = [_joined(value, run) for value in run.per_replica]
    of_replicas: list[_Shapes] = list(zip(*map(_shapes, run.per_replica), strict=True))
    kinds = list(dict.fromkeys(of_replicas))
    which = [kinds.index(shapes) for shapes in of_replicas]
    traces: list[_Trace] = []
    differentiated = frame.is_transformed  # or mapped, which does not matter here

    def body(arrays: list[Any], cells: list[Any], _: list[Any]) -> Any:
        traces[:] = [_trace(run, frame, shapes, arrays, cells) for shapes in kinds]
        index = jnp.asarray(which, jnp.int32)[lax.axis_index(run.mesh.axis_name)]
        return _woven(traces, Numbering(differentiated=differentiated), index, arrays, cells)

    results, sums, state = run.map(body, arrays)
    traced = traces[0].traced
    traced.store(state, frame)
    shapes = list(zip(*(traces[kind].result_shapes for kind in which), strict=True))
    return traced.result(results, sums, run.mesh, shapes)


def _joined(value: PerReplica, run: ReplicaRun) -> Any:
    """The values of all replicas as one array, each padded to the largest."""
    array = value.to_global(run.mesh)[0] if value.uniform is not None else value.padded()
    if array is None:
        raise CannotWeave("their arguments have different dtypes or numbers of axes, or are not all arrays")
    return array


def _shapes(value: PerReplica) -> list[tuple[int, ...]]:
    """The shape of each replica's value."""
    if value.uniform is not None:
        assert value.mesh is not None
        return [value.uniform.shape] * value.mesh.num_replicas
    return [jnp.shape(component) for component in value.components]


class _Trace(NamedTuple):
    """The trace of a replica for one combination of shapes."""

    traced: Traced
    shapes: _Shapes
    program: Any
    results: Any
    """The abstract results: what `ReplicaRun.trace` and the merge functions returned."""

    @property
    def result_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the replica function's results."""
        return [result.shape for result in self.results[0]]

    @property
    def equal(self) -> list[bool]:
        """Which of the results are equal on all replicas."""
        results, sums, (whole, parts), merged = self.results
        marks = [(results, False), (sums, True), (whole, True), (parts, False), (merged, True)]
        return [mark for values, mark in marks for _ in jax.tree.leaves(values)]


def _trace(
    run: ReplicaRun, frame: ProgramFrame, shapes: _Shapes, arrays: list[Any], cells: list[Any]
) -> _Trace:
    """Trace a replica whose arguments have these shapes, taking padded arrays."""
    traced = Traced()
    frame.on_write()  # do not reuse cached inner traces from another trace of the replica

    def replica(arrays: list[Any], cells: list[Any]) -> Any:
        return *run.trace(traced, arrays, cells, [], alike=False), traced.merged

    own = [_sliced_to(array, shape) for array, shape in zip(arrays, shapes, strict=True)]
    return _Trace(traced, shapes, *jax.make_jaxpr(replica, return_shape=True)(own, cells))


def _sliced_to(array: Any, shape: tuple[int, ...]) -> Any:
    return array[tuple(map(slice, shape))] if shape else array.reshape(())


def _woven(
    traces: Sequence[_Trace], numbering: Numbering, index: Any, arrays: list[Any], cells: list[Any]
) -> Any:
    """The results of `traces[index]`."""
    _check_structures(traces)
    programs: list[Program] = []
    alike = [len({trace.shapes[i] for trace in traces}) == 1 for i in range(len(arrays))]
    parts: dict[Name, Any] = {("part", i): cell for i, cell in enumerate(cells)}
    shared, own = dict(parts), list[dict[Name, Any]]()
    for number, trace in enumerate(traces):
        names: list[Name] = [("argument", i, None if same else number) for i, same in enumerate(alike)]
        programs.append(numbering.read(trace.program, [*names, *parts]))
        own.append(dict(zip(names, arrays, strict=True)))
        for name, array, shape, same in zip(names, arrays, trace.shapes, alike, strict=True):
            if same:
                shared[name] = _sliced_to(array, shape)
    _check_equal(traces[0].equal, programs)
    wanted = traces[0].results[:-1]
    count = len(jax.tree.leaves(wanted))
    programs = [program._replace(results=program.results[:count]) for program in programs]
    values = weave(programs, numbering, index, shared, own)
    return jax.tree.unflatten(jax.tree.structure(wanted), values)


def _check_structures(traces: Sequence[_Trace]) -> None:
    first = traces[0]
    structure = jax.tree.structure(first.results)
    for trace in traces[1:]:
        if jax.tree.structure(trace.results) != structure or not trace.traced.is_like(first.traced):
            raise CannotWeave("they return different structures or numbers, or write different variables")
        if _shapes_of_state(trace) != _shapes_of_state(first):
            raise CannotWeave("they write values of different shapes")


def _shapes_of_state(trace: _Trace) -> list[tuple[int, ...]]:
    return [x.shape for x in jax.tree.leaves(trace.results[1:])]


def _check_equal(equal: Sequence[bool], programs: Sequence[Program]) -> None:
    """Raise if a result that should be equal on all replicas depends on the shapes of one of them."""
    names = zip(*(program.results for program in programs), strict=True)
    if any(mark and len(set(slot)) > 1 for mark, slot in zip(equal, names, strict=True)):
        raise CannotWeave(
            "what they write, or get from a merge_call, should be equal but depends on the number of rows"
        )
