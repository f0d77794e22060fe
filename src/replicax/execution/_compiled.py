"""A step compiled for one kind of arguments.

The step is traced twice. The first, abstract trace finds the variables that it touches. The second makes
a pure function from (arrays only read, arrays also written, arguments) to (results, new arrays), whose
written arrays are donated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np

from replicax._jax import ArrayImpl, eval_trace, fresh_traces, plain, trace_state, traces_of
from replicax.collectives import await_result, collect_step_timeouts
from replicax.contexts import context_stack, current, enter
from replicax.errors import TracingError, VariableError
from replicax.execution._outputs import Outputs, distributed_in
from replicax.execution._program import (
    EagerCallNeeded,
    FreshTraceNeeded,
    ProgramFrame,
    layout,
)
from replicax.execution._state import StepState
from replicax.execution._traced_values import explain_traced_values
from replicax.topology import ReplicaMesh
from replicax.values import Layout, PerReplica, free, is_array, on_first_replica
from replicax.variables import (
    Variable,
    is_variable,
    journal,
    note_before_write,
    state_lock,
    state_version,
    use_frame,
)

__all__ = ["CompiledStep", "OtherArguments", "leaf_key"]

_NO_VALUES = (
    "A compiled step used a traced value as a Python number or a NumPy array (in `if`, `while`, "
    "`float()`, `range()`, `np.asarray()`, ...). While it is traced, its arguments and variables and what "
    "is computed from them have no values yet. Choose with `jnp.where` or `jax.lax.cond`, show with "
    "`jax.debug.print`, do it to what the step returns, or leave out `rx.function` to run eagerly."
)


class OtherArguments(Exception):
    """A step was called in the quick way with arguments, or in a context, that it was not made for."""


def leaf_key(leaf: Any) -> Any:
    """What a program depends on of an argument."""
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, jax.numpy.result_type(leaf), False
    if isinstance(leaf, float | complex):
        return type(leaf), repr(leaf)  # 0.0 == -0.0, and a NaN is not equal to itself
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
        self._outputs = Outputs()
        self._apart = self._components_apart()
        found = self._discover(leaves)
        for node in (*distributed_in(treedef), *distributed_in(self._outputs.treedef)):
            found.use_mesh(node.mesh)
        self._mesh: ReplicaMesh | None = found.mesh
        read = [v for ref, v in found.touched.items() if ref not in found.written]
        self._state = StepState(read, list(found.written.values()))
        distributed = {i for node in distributed_in(treedef) for i in jax.tree.leaves(node)}
        self._plain = [i for i in self._dynamic if i not in distributed]
        self._moved_read = [i for i, v in enumerate(self._state.read) if self._is_moved(v)]
        self._moved_written = [i for i, v in enumerate(self._state.written) if self._is_moved(v)]
        self._tops = _top_level(treedef)
        self._kind = [leaf_key(leaves[i]) for i in self._dynamic]
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
                # A context of its own keeps functions that this one calls from their quick way, which
                # knows nothing of journals.
                with journal(keep=False), enter(current()):
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

    def _step(self, read: list[Any], written: list[Any], arrays: list[Any]) -> Any:
        if [leaf_key(array) for array in arrays] != self._kind:
            raise OtherArguments
        variables = (*self._state.read, *self._state.written)
        values = (*read, *written)
        inputs = {v.ref(): plain(x) for v, x in zip(variables, values, strict=True)}
        frame = ProgramFrame(inputs, fresh=self._fresh)
        results = self._call(frame, arrays)
        return results, [frame.output(variable) for variable in self._state.written]

    def _call(self, frame: ProgramFrame, arrays: list[Any]) -> list[Any]:
        leaves = list(self._static)
        for i, array in zip(self._dynamic, arrays, strict=True):
            leaves[i] = plain(array)
        args, kwargs = self._treedef.unflatten(leaves)
        with use_frame(frame), contextlib.ExitStack() as tokens:
            if self._fresh:
                frame.on_write = lambda: tokens.enter_context(fresh_traces())
                frame.on_write()
            else:
                tokens.enter_context(traces_of("step"))
            with explain_traced_values(_NO_VALUES):
                result = self._fn(*args, **kwargs)
            return self._outputs.take(result)

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
        return results, [layout(variable, mesh) for variable in self._state.written]

    def _components_apart(self) -> list[int]:
        """Which leaves are components of per-replica values with different shapes."""
        nodes = distributed_in(self._treedef)
        apart = [n for n in nodes if isinstance(n, PerReplica) and n.num_components is not None]
        if any(node.mesh is not None and not node.mesh.is_local for node in apart):
            raise TracingError(
                "Per-replica values with different shapes can't be arguments of a compiled step that "
                "spans several processes. Call the step eagerly, or pad them to one shape."
            )
        dynamic = set(self._dynamic)
        return [i for node in apart for i in node.components if i in dynamic]

    # Running.

    def __call__(self, leaves: list[Any]) -> Any:
        """Run the step on arguments with these `leaves`."""
        mesh = self._mesh
        if mesh is not None:
            for i in self._apart:
                leaves[i] = mesh.replicate(leaves[i])
            for i in self._plain:
                # What is there already stays as it is, as in `quick_call`: JAX would compile for both.
                if getattr(leaves[i], "sharding", None) != mesh.replicated:
                    leaves[i] = free(leaves[i])
        arrays = [leaves[i] for i in self._dynamic]
        with state_lock:
            results = self._run(arrays)
        if mesh is not None:
            mesh.wait(results)
        if self._timeout is not None:
            await_result(results, self._timeout, "A compiled step")
        return self._outputs.rebuilder(mesh)(results)

    def _run(self, arrays: list[Any]) -> list[Any]:
        state = self._state
        note_before_write(state.written)
        read = self._brought(state.arrays_to_read(), self._moved_read)
        written = state.check_out()
        try:
            results, new = self._jitted(read, self._brought(written, self._moved_written), arrays)
        except BaseException as error:
            state.fail(written, error)
            raise
        state.check_in(new)
        if self._moved_written:
            state.give_back()
            for i in self._moved_written:
                self._take_back(state.written[i])
        return results

    @property
    def is_direct(self) -> bool:
        """Whether a run is nothing but a call of the program."""
        waits = self._timeout or (self._mesh is not None and self._mesh.must_wait)
        moves = self._apart or self._moved_read or self._moved_written
        return len(self._dynamic) == len(self._static) and not (waits or moves)

    def quick_call(self) -> Callable[[Any, Any], Any]:
        """A shorter way to run the step again; raises if the arguments or the context are not as now.

        JAX looks at the shapes of arrays anyway. It calls `_step` for ones that it has not seen, which
        tells whether they are of this step's kind; so only the structure is looked at here. All is in one
        function body, since at this scale every call of another function shows.
        """
        jitted, version, tops, per_replica = self._jitted, state_version, self._tops, PerReplica
        stack, tracing, not_tracing, lock = context_stack.get, trace_state, eval_trace, state_lock
        then, num_arguments, structure, state = stack(), len(tops or ()), self._treedef, self._state
        rebuild, plain_arrays = self._outputs.rebuilder(self._mesh), _ARRAYS
        read: list[Any] = []
        seen = -1

        def call(args: Any, kwargs: Any) -> Any:
            nonlocal read, seen
            if stack() is not then or tracing.trace is not not_tracing:
                raise OtherArguments
            if tops is None:
                arrays, found = jax.tree.flatten((args, kwargs), is_leaf=is_variable)
                if found != structure or not all(type(array) in plain_arrays for array in arrays):
                    raise OtherArguments
            elif kwargs or len(args) != num_arguments:
                raise OtherArguments
            else:
                arrays = []
                for argument, lies in zip(args, tops):  # noqa: B905 - a check would cost time
                    if type(argument) is per_replica and argument._layout is lies:
                        arrays.append(argument._array)
                    elif lies is None and type(argument) in plain_arrays:
                        arrays.append(argument)
                    else:
                        raise OtherArguments
            with lock:
                if seen != version.count:
                    read = state.arrays_to_read()
                written, state.held = state.held, None
                if written is None:
                    written = state.check_out()
                try:
                    results, state.held = jitted(read, written, arrays)
                except BaseException as error:
                    state.fail(written, error)
                    raise _explained(error) from None
                version.count = seen = version.count + 1
            return rebuild(results)

        return call

    def _brought(self, arrays: list[Any], moved: list[int]) -> list[Any]:
        """`arrays`, with those of variables that rest elsewhere brought to the step's devices."""
        if not moved:
            return arrays
        assert self._mesh is not None
        brought = list(arrays)
        for i in moved:
            brought[i] = self._mesh.replicate(on_first_replica(arrays[i]))
        return brought

    def _take_back(self, variable: Variable) -> None:
        """Put the new state of a moved variable where it rests."""
        assert variable._array is not None
        variable._array = variable._resting(on_first_replica(variable._array))


# The types of arguments that go into a program as they are.
_ARRAYS = frozenset({ArrayImpl, np.ndarray})


def _explained(error: BaseException) -> BaseException:
    """An error of the quick way: one that the long way can mend, or the user's."""
    other_devices = isinstance(error, ValueError) and "incompatible devices" in str(error)
    return OtherArguments() if other_devices else error


def _top_level(treedef: Any) -> list[Layout | None] | None:
    """For arguments that are nothing but arrays and per-replica values: how each of the latter lies.

    The global arrays of such arguments can go into the program without walking a structure.
    """
    args, kwargs = treedef.unflatten(range(treedef.num_leaves))
    tops: list[Layout | None] = []
    for argument in args:
        if isinstance(argument, PerReplica) and argument.is_global and not argument.layout.masked:
            tops.append(argument.layout)
        elif isinstance(argument, int):
            tops.append(None)
        else:
            return None
    return None if kwargs else tops


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    weak = isinstance(leaf, jax.Array) and getattr(leaf, "weak_type", False)
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else jax.numpy.result_type(leaf)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=weak)
