"""A step compiled for one kind of arguments.

The step is traced twice. The first, abstract trace finds the variables that it touches. The second makes
a pure function from (arrays only read, arrays also written, arguments) to (results, new arrays), whose
written arrays are donated.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np

from replicax._jax import FirstReplicaViews, eval_trace, plain, trace_state
from replicax.collectives import await_result, collect_step_timeouts
from replicax.contexts import context_stack
from replicax.errors import TracingError, VariableError
from replicax.execution._program import (
    EagerCallNeeded,
    FreshTraceNeeded,
    ProgramFrame,
    layout,
)
from replicax.topology import ReplicaMesh
from replicax.values import Component, Layout, Mirrored, PerReplica, free, is_array, on_first_replica
from replicax.variables import Variable, VariableCopy, journal, state_version, use_frame

__all__ = ["CompiledStep", "OtherArguments", "is_variable", "leaf_key"]

# JAX keeps traces by function and by this value: a new one makes it trace nested functions anew.
_trace_token = jax.make_user_context(None)
_tokens = itertools.count()


class OtherArguments(ValueError):
    """A step was called in the quick way with arguments, or in a context, that it was not made for."""


def is_variable(value: Any) -> bool:
    """Whether `value` is a variable, which `jax.tree` would take for its value."""
    return isinstance(value, Variable | VariableCopy)


def leaf_key(leaf: Any) -> Any:
    """What a program depends on of an argument."""
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, leaf.weak_type
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, jax.numpy.result_type(leaf), False
    return leaf.ref() if isinstance(leaf, Variable) else (type(leaf), leaf)


@final
class CompiledStep:
    """A step traced and compiled for one kind of arguments."""

    def __init__(self, fn: Callable[..., Any], leaves: list[Any], treedef: Any) -> None:
        """Trace `fn` for arguments like `leaves`; compile it when it is first run."""
        self._fn, self._treedef = fn, treedef
        self._dynamic = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
        self._static = [None if is_array(leaf) else leaf for leaf in leaves]
        self._fresh = False
        self._held: list[Any] | None = None
        self._outputs = _Outputs()
        found = self._discover(leaves)
        for node in (*_distributed(treedef), *_distributed(self._outputs.treedef)):
            found.use_mesh(node.mesh)
        self._mesh: ReplicaMesh | None = found.mesh
        self._written = list(found.written.values())
        self._read = [v for ref, v in found.touched.items() if ref not in found.written]
        self._variables = [*self._read, *self._written]
        self._apart = self._components_apart(leaves)
        distributed = {i for node in _distributed(treedef) for i in jax.tree.leaves(node)}
        self._plain = [i for i in self._dynamic if i not in distributed]
        self._moved_read = [i for i, v in enumerate(self._read) if self._is_moved(v)]
        self._moved_written = [i for i, v in enumerate(self._written) if self._is_moved(v)]
        self._tops = _top_level(treedef)
        structure = jax.tree.structure(self._arguments(leaves))
        self._kind = (structure, *(leaf_key(leaves[i]) for i in self._dynamic))
        self._jitted = jax.jit(self._step, donate_argnums=1, out_shardings=self._layouts())

    # Tracing.

    def _discover(self, leaves: list[Any]) -> ProgramFrame:
        """Find the variables that the step touches; create those that it creates."""
        arrays = [_abstract(leaves[i]) for i in self._dynamic]
        for _ in range(4):
            try:
                with collect_step_timeouts() as limits:
                    frame = self._trace_abstractly(arrays)
            except FreshTraceNeeded:
                self._fresh = True
            except EagerCallNeeded:
                with journal(keep=False):
                    args, kwargs = self._treedef.unflatten(leaves)
                    self._fn(*args, **kwargs)
            else:
                if not frame.created:
                    self._timeout = min(limits, default=None)
                    return frame
        raise VariableError(
            "The function creates variables on every call. A compiled step may create variables only "
            "once: keep them, and create them only if they are not there yet."
        )

    def _trace_abstractly(self, arrays: list[Any]) -> ProgramFrame:
        frames: list[ProgramFrame] = []

        def trace(arrays: list[Any]) -> Any:
            frame = ProgramFrame(None, fresh=self._fresh)
            frames.append(frame)
            return self._call(frame, arrays)

        jax.eval_shape(trace, arrays)
        return frames[-1]

    def _step(self, read: list[Any], written: list[Any], arguments: Any) -> Any:
        arrays, structure = jax.tree.flatten(arguments)
        if (structure, *map(leaf_key, arrays)) != self._kind:
            raise OtherArguments
        values = (*read, *written)
        inputs = {v.ref(): plain(x) for v, x in zip(self._variables, values, strict=True)}
        frame = ProgramFrame(inputs, fresh=self._fresh)
        results = self._call(frame, arrays)
        return results, [frame.output(variable) for variable in self._written]

    def _call(self, frame: ProgramFrame, arrays: list[Any]) -> list[Any]:
        leaves = list(self._static)
        for i, array in zip(self._dynamic, arrays, strict=True):
            leaves[i] = plain(array)
        args, kwargs = self._treedef.unflatten(leaves)
        token = next(_tokens) if self._fresh else None
        with use_frame(frame), _trace_token(token):
            return self._outputs.take(self._fn(*args, **kwargs))

    # Where things are.

    def _is_moved(self, variable: Variable) -> bool:
        """Whether the variable's state must be brought to the step's devices and back."""
        if self._mesh is None:
            return False
        return not variable.rests_on_mesh or variable.mesh != self._mesh

    def _layouts(self) -> Any:
        mesh = self._mesh
        if mesh is None:
            return None
        results = [mesh.sharded if sharded else mesh.replicated for sharded in self._outputs.sharded]
        return results, [layout(variable, mesh) for variable in self._written]

    def _components_apart(self, leaves: list[Any]) -> list[int]:
        """Which leaves are components of per-replica values with different shapes."""
        nodes = _distributed(self._treedef)
        apart = [n for n in nodes if isinstance(n, PerReplica) and n.num_components is not None]
        indices = [i for node in apart for i in node.components if i in set(self._dynamic)]
        if indices and self._mesh is not None and not self._mesh.is_local:
            raise TracingError(
                "Per-replica values with different shapes can't be arguments of a compiled step that "
                "spans several processes. Call the step eagerly, or pad them to one shape."
            )
        return indices

    # Running.

    def __call__(self, leaves: list[Any]) -> Any:
        """Run the step on arguments with these `leaves`."""
        written, read = self._take_written(), self._take_read()
        self.give_back()
        if self._mesh is not None:
            for i in self._apart:
                leaves[i] = self._mesh.replicate(leaves[i])
            for i in self._plain:
                leaves[i] = free(leaves[i])
        if self._moved_read or self._moved_written:
            self._bring(read, self._moved_read)
            self._bring(written, self._moved_written)
        results, new = self._jitted(read, written, self._arguments(leaves))
        for variable, array in zip(self._written, new, strict=True):
            variable._array = array
        state_version.count += 1
        for i in self._moved_written:
            self._take_back(self._written[i])
        if self._mesh is not None:
            self._mesh.wait(results if results else new)
            if self._timeout is not None:
                await_result((results, new), self._timeout, "A compiled step")
        return self._outputs.rebuilder(self._mesh)(results)

    def _arguments(self, leaves: list[Any]) -> Any:
        """The form in which arguments go into the program: as they are, if there are only arrays."""
        if self._tops is None and len(self._dynamic) == len(leaves):
            return self._treedef.unflatten(leaves)
        return [leaves[i] for i in self._dynamic]

    @property
    def is_direct(self) -> bool:
        """Whether a run is nothing but a call of the program."""
        waits = self._timeout or (self._mesh is not None and self._mesh.must_wait)
        moves = self._apart or self._moved_read or self._moved_written
        return len(self._dynamic) == len(self._static) and not (waits or moves)

    def quick_call(self) -> Callable[[Any, Any], Any]:
        """A shorter way to run the step again; raises if the arguments or the context are not as now.

        JAX looks at the arguments anyway. It calls `_step` for ones that it has not seen, which tells
        whether they are of this step's kind; so hardly anything needs to be looked at here. All is in one
        function body, since at this scale every call of another function shows.
        """
        jitted, version, tops, per_replica = self._jitted, state_version, self._tops, PerReplica
        stack, tracing, not_tracing = context_stack.get, trace_state, eval_trace
        then, num_arguments = stack(), len(tops or ())
        rebuild = self._outputs.rebuilder(self._mesh)
        read: list[Any] = []
        seen = -1

        def call(args: Any, kwargs: Any) -> Any:
            nonlocal read, seen
            if stack() is not then or tracing.trace is not not_tracing:
                raise OtherArguments
            if tops is None:
                arguments: Any = (args, kwargs)
            elif kwargs or len(args) != num_arguments:
                raise OtherArguments
            else:
                arguments = []
                for argument, lies in zip(args, tops):  # noqa: B905 - a check would cost time
                    if lies is None:
                        arguments.append(argument)
                    elif type(argument) is per_replica and argument._layout is lies:
                        arguments.append(argument._array)
                    else:
                        raise OtherArguments
            written = self._held
            if written is None:
                written = self._hold()
            if seen != version.count:
                read = self._take_read()
            results, self._held = jitted(read, written, arguments)
            version.count = seen = version.count + 1
            return rebuild(results)

        return call

    # The state that the step works on. While it runs again and again, it keeps the arrays that it writes:
    # handing them to the variables and back would cost more than all else that a call does here.

    def _take_written(self) -> list[Any]:
        """The arrays that the step will write into: nobody else has them."""
        return [_current(v, for_writing=True) for v in self._written]

    def _take_read(self) -> list[Any]:
        return [_current(v, for_writing=False) for v in self._read]

    def _hold(self) -> list[Any]:
        """Take the written arrays out of their variables, until somebody asks for one."""
        self._held = arrays = self._take_written()
        for variable in self._written:
            variable._array, variable._holder = None, self
        return arrays

    def give_back(self) -> None:
        """Put the arrays that the step keeps into their variables."""
        if self._held is None:
            return
        for variable, array in zip(self._written, self._held, strict=True):
            variable._array, variable._holder = array, None
        self._held = None

    def _bring(self, arrays: list[Any], moved: list[int]) -> None:
        assert self._mesh is not None
        for i in moved:
            arrays[i] = self._mesh.replicate(on_first_replica(arrays[i]))

    def _take_back(self, variable: Variable) -> None:
        """Put the new state of a moved variable where it rests."""
        assert variable._array is not None
        variable._array = variable._resting(on_first_replica(variable._array))


def _current(variable: Variable, *, for_writing: bool) -> Any:
    """The variable's array, for a step to read or to write into."""
    if variable._loose or variable._holder is not None:
        variable._settle(for_writing=for_writing)
    return variable._array


def _top_level(treedef: Any) -> list[Layout | None] | None:
    """For arguments that are nothing but arrays and per-replica values: how each of the latter lies.

    The global arrays of such arguments can go into the program without walking a structure.
    """
    args, kwargs = treedef.unflatten(range(treedef.num_leaves))
    tops: list[Layout | None] = []
    for argument in args:
        if isinstance(argument, PerReplica) and argument.is_global:
            tops.append(argument.layout)
        elif isinstance(argument, int):
            tops.append(None)
        else:
            return None
    return None if kwargs else tops


def _distributed(treedef: Any) -> list[PerReplica | Mirrored]:
    """The distributed values in a structure, holding the numbers of their leaves."""
    numbers = treedef.unflatten(range(treedef.num_leaves))
    nodes = jax.tree.leaves(numbers, is_leaf=lambda x: isinstance(x, PerReplica | Mirrored))
    return [node for node in nodes if isinstance(node, PerReplica | Mirrored)]


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    weak = isinstance(leaf, jax.Array) and leaf.weak_type
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else jax.numpy.result_type(leaf)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=weak)


@dataclasses.dataclass
class _Outputs:
    """The structure of a step's result, and which of its leaves are arrays."""

    treedef: Any = None
    leaves: list[Any] = dataclasses.field(default_factory=list)
    dynamic: list[int] = dataclasses.field(default_factory=list)
    sharded: list[bool] = dataclasses.field(default_factory=list)
    apart: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    plain: list[int] = dataclasses.field(default_factory=list)

    def take(self, result: Any) -> list[Any]:
        """Take the arrays out of `result` and remember the rest."""
        self.leaves, self.treedef = jax.tree.flatten(result, is_leaf=is_variable)
        self.leaves = [x.container if isinstance(x, Component) else x for x in self.leaves]
        self.dynamic = [i for i, leaf in enumerate(self.leaves) if is_array(leaf)]
        arrays = [self.leaves[i] for i in self.dynamic]
        for i in self.dynamic:
            self.leaves[i] = None
        self._sort()
        return arrays

    def _sort(self) -> None:
        """Tell apart shards of per-replica values, their separate components, and plain arrays."""
        shards, apart, mirrored = set(), {}, set()
        for node in _distributed(self.treedef):
            if isinstance(node, Mirrored):
                mirrored.update(jax.tree.leaves(node))
            elif node.num_components is not None:
                apart.update({leaf: replica for replica, leaf in enumerate(node.components)})
            else:
                shards.update(jax.tree.leaves(node))
        self.sharded = [i in shards for i in self.dynamic]
        self.apart = [(n, apart[i]) for n, i in enumerate(self.dynamic) if i in apart]
        special = shards | mirrored | set(apart)
        self.plain = [n for n, i in enumerate(self.dynamic) if i not in special]

    def rebuilder(self, mesh: ReplicaMesh | None) -> Callable[[list[Any]], Any]:
        """What makes the result of a run from its arrays."""
        treedef, static, dynamic = self.treedef, self.leaves, self.dynamic
        if mesh is None or not (self.plain or self.apart):
            convert = None
        else:
            convert = functools.partial(self._convert, mesh, FirstReplicaViews())
        whole = treedef.unflatten(range(len(static))) if len(static) == 1 else None
        if isinstance(whole, PerReplica) and whole.is_global:
            from_layout, lies = PerReplica.from_layout, whole.layout
            return lambda arrays: from_layout(arrays[0], lies)
        if len(dynamic) == len(static) and convert is None:
            return treedef.unflatten

        def rebuild(arrays: list[Any]) -> Any:
            if convert is not None:
                convert(arrays)
            if len(dynamic) == len(static):
                return treedef.unflatten(arrays)
            leaves = list(static)
            for i, array in zip(dynamic, arrays, strict=True):
                leaves[i] = array
            return treedef.unflatten(leaves)

        return rebuild

    def _convert(self, mesh: ReplicaMesh, views: FirstReplicaViews, arrays: list[Any]) -> None:
        """Plain arrays leave the mesh, and separate components go to their replicas."""
        for n in self.plain:
            arrays[n] = views(n, arrays[n])
        for n, replica in self.apart:
            arrays[n] = mesh.split_replicated(arrays[n])[replica]
