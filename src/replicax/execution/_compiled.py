"""A step compiled for one kind of arguments.

A trace of the step finds the variables that it uses, and becomes a pure function:

    ([arrays only read], [arrays also written], *arguments) -> (*results, *new arrays)

The arrays that are written are donated.
Replicas get their own parts of sharded and per-replica variables as inputs, which must be known before the
replicas are traced, so a step with such variables is traced a second time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from replicax._jax import fresh_traces, number_check, plain, traces_of, uncommit_outputs
from replicax._native import Program, is_built
from replicax.collectives import await_result, collect_step_timeouts
from replicax.contexts import Origins
from replicax.errors import OutOfMemoryError, TracingError, VariableError
from replicax.execution._between_processes import BetweenProcesses
from replicax.execution._debugging import check_numbers, without_debugging
from replicax.execution._lookups import Lookups, looked_up, obstacles, warn_of_whole_tables
from replicax.execution._mail import Mail, fetcher
from replicax.execution._memory import StepMemory
from replicax.execution._outputs import Outputs, distributed_in, mask_leaves, shared_masks
from replicax.execution._program import EagerCallNeeded, FreshTraceNeeded, ProgramFrame
from replicax.execution._repeated import scan_calls
from replicax.execution._staged import StagedStep
from replicax.execution._state import StepState, in_store_order
from replicax.execution._traced_values import explain_leaks, explain_traced_values
from replicax.topology import ReplicaMesh
from replicax.values import PerReplica, free, is_array
from replicax.variables import Store, Variable, journal, use_frame

__all__ = ["CompiledStep"]

_NO_VALUES = (
    "A compiled step used a traced value as a Python number or a NumPy array (in `if`, `while`, "
    "`float()`, `range()`, `np.asarray()`, ...). While a step is traced, its arguments, its variables and "
    "everything computed from them have no values. Branch with `jnp.where` or `jax.lax.cond`, print with "
    "`jax.debug.print`, convert what the step returns instead, or leave out `rx.function` to run eagerly."
)


@final
class CompiledStep:
    """A step traced and compiled for one kind of arguments.

    Args:
        fn: the step.
        leaves: arguments of one call, flattened.
        treedef: their structure.
        repeats: how many calls the program makes, one after the other. For more than one call, `run` takes
            the leaves of all calls and returns a list of their results.
        tag: cached traces of inner functions are reused only between steps with an equal tag.
    """

    def __init__(
        self, fn: Callable[..., Any], leaves: list[Any], treedef: Any, *, repeats: int = 1, tag: Any = None
    ) -> None:
        """Find the variables of `fn`; `compile` compiles it."""
        self._fn, self._treedef, self._repeats = fn, treedef, repeats
        self._dynamic = [i for i, leaf in enumerate(leaves) if _is_traced(leaf)]
        self._static = [None if _is_traced(leaf) else leaf for leaf in leaves]
        self._fresh = False
        self._tag = tag
        self._outputs = Outputs()
        self._mail = Mail()
        self._origins: dict[Any, Origins] = {}
        self.masks = mask_leaves(treedef)
        """Which of the arguments' leaves are masks of padded batches."""
        self._same = dict(zip(self.masks, shared_masks(self.masks, leaves), strict=True))
        self._apart = self._components_apart()
        self._lookups: Lookups | None = None
        self._staged: StagedStep | None = None
        found = self._discover(leaves)
        for node in (*distributed_in(treedef), *distributed_in(self._outputs.treedef)):
            found.use_mesh(node.mesh)
        self._mesh = found.mesh
        self._make_rebuilder()
        read = [v for ref, v in found.touched.items() if ref not in found.written]
        self._state = StepState(in_store_order(read), in_store_order(found.written.values()), found.mesh)
        distributed = {i for node in distributed_in(treedef) for i in jax.tree.leaves(node)}
        # Without a mesh, a step that writes nothing runs wherever its arguments are, as with `jax.jit`.
        may_move = found.mesh is not None or found.written
        self._plain = [i for i in self._dynamic if i not in distributed] if may_move else []
        self._num_arguments = len(self._dynamic)
        if self._lookups is not None:  # extra arguments, which the step fetches itself
            self._lookups.mesh = found.mesh
            self._dynamic += range(len(leaves), len(leaves) + self._lookups.num_arrays)
            self._static += [None] * self._lookups.num_arrays
        self._jitted = self._jit(donate_argnums=1)
        self._memory: StepMemory | None = None
        self._is_compiled = False
        self.program: jax.stages.Compiled | None = None
        """The program, once it has been compiled."""
        self._checked: dict[Any, jax.stages.Compiled] = {}  # without donation, by placement
        self._between: BetweenProcesses | None = None
        if found.mesh is not None and not found.mesh.is_local:
            self._between = BetweenProcesses(found.mesh, fn)
        self._fetch = fetcher((*self._state.read, *self._state.written), self._lookups)
        if self._fetch is not None and repeats > 1:
            raise TracingError(
                "step.many() of a step with variables on parameter servers: every step fetches them, which "
                "one program can't do. Call the step, or schedule it, as often as needed."
            )
        self.run: Callable[[list[Any]], Any] = self._run_in_python
        """Runs the step, once it has been compiled, with the leaves of its arguments."""

    # Tracing.

    def _discover(self, leaves: list[Any]) -> ProgramFrame:
        """Trace the step to find the variables that it uses; new ones are created here."""
        frame, traced = self._trace_until_complete(leaves, [])
        tables = looked_up(frame)
        if not tables and not frame.needs_parts:
            self._staged = StagedStep(traced, frame)
        while tables:
            frame, traced = self._trace_until_complete(leaves, tables)
            reasons = obstacles(tables, frame, traced)
            if not reasons:
                self._lookups = Lookups(tables, traced, frame.lookups)
                return frame
            warn_of_whole_tables(reasons)
            tables = [table for table in tables if table.ref() not in reasons]
            if not tables:
                frame, _ = self._trace_until_complete(leaves, [])
        return frame

    def _trace_until_complete(self, leaves: list[Any], tables: list[Variable]) -> tuple[ProgramFrame, Any]:
        arrays = [_abstract(leaves[i]) for i in self._dynamic]
        for _ in range(4):
            try:
                with collect_step_timeouts() as limits:
                    frame, traced = self._trace_abstractly(arrays, tables)
            except FreshTraceNeeded:
                self._fresh = True
            except EagerCallNeeded:
                if not all(is_array(leaves[i]) for i in self._dynamic):
                    raise TracingError(
                        "The step creates a variable whose initial value it computes, so the shapes of its "
                        "arguments are not enough. Create the variable first, or pass arrays."
                    ) from None
                with journal(keep=False):
                    args, kwargs = self._treedef.unflatten(leaves)
                    self._fn(*args, **kwargs)
            else:
                if not frame.created:
                    self._timeout = min(limits, default=None)
                    return frame, traced
        raise VariableError(
            "The function creates variables on every call. A compiled step may create variables only "
            "once: store them, and create them only if they do not exist yet."
        )

    def _trace_abstractly(self, arrays: list[Any], tables: list[Variable]) -> tuple[ProgramFrame, Any]:
        """The frame of a trace, and the traced program.

        The program is the whole step or, if the step looks up rows in `tables`, computes the row numbers.
        """
        frames: list[ProgramFrame] = []

        def trace(*arrays: Any) -> Any:
            frame = self._frame(None, dict.fromkeys(table.ref() for table in tables))
            frames.append(frame)
            results = self._call(frame, arrays)
            if tables:
                return [numbers for _, numbers in frame.lookups]
            return results, list(map(frame.array, frame.written.values()))

        traced = jax.make_jaxpr(trace)(*arrays)
        return frames[-1], traced

    def _frame(self, inputs: Any, tables: Any) -> ProgramFrame:
        return ProgramFrame(inputs, fresh=self._fresh, origins=self._origins, tag=self._tag, tables=tables)

    def _jit(self, **options: Any) -> Any:
        def program(*operands: Any) -> Any:
            return self._program(*operands)

        program.__name__ = self.name  # which profiles and the logs of JAX show
        return jax.jit(program, out_shardings=self._shardings(), **options)

    def _program(self, read: list[Any], written: list[Any], *arguments: Any) -> tuple[Any, ...]:
        """The results of the step, or of all calls, followed by the new arrays of variables."""
        if self._repeats == 1:
            results, new = self._step(read, written, arguments)
            return (*results, *new)
        calls = _divided(arguments, self._repeats)
        results, new = scan_calls(functools.partial(self._step, read), written, calls)
        return (*itertools.chain(*results), *new)

    def _step(self, read: list[Any], written: list[Any], arrays: Sequence[Any]) -> Any:
        variables = (*self._state.read, *self._state.written)
        values = (*read, *written)
        if self._staged is not None:
            inputs = {v.ref(): x for v, x in zip(variables, values, strict=True)}
            return self._staged(inputs, arrays, self._state.written)
        inputs = {v.ref(): plain(x) for v, x in zip(variables, values, strict=True)}
        fetched = list(map(plain, arrays[self._num_arguments :]))
        tables = self._lookups and self._lookups.tables(fetched)
        frame = self._frame(inputs, tables)
        results = self._call(frame, arrays)
        self._make_rebuilder()
        return results, list(map(frame.array, self._state.written))

    def _call(self, frame: ProgramFrame, arrays: Sequence[Any]) -> list[Any]:
        leaves = list(self._static)
        for i, array in zip(self._dynamic, arrays, strict=True):
            leaves[i] = plain(array)
        for i, first in self._same.items():
            leaves[i] = leaves[first]  # the arrays of one batch share one mask
        args, kwargs = self._treedef.unflatten(leaves[: self._treedef.num_leaves])
        with use_frame(frame), contextlib.ExitStack() as tokens:
            if self._fresh:
                frame.on_write = lambda: tokens.enter_context(fresh_traces())
                frame.on_write()
            else:
                tokens.enter_context(traces_of("step", self._tag))
            with explain_traced_values(_NO_VALUES):
                result = self._fn(*args, **kwargs)
            results = self._outputs.take(result)
            for_servers = self._mail.pack(frame.sendings)
            return [*results, *for_servers]

    def _make_rebuilder(self) -> None:
        self._outputs.rebuild = self._mail.sending(self._outputs.rebuilder(self._mesh))

    # Placement.

    def _shardings(self) -> Any:
        mesh = self._mesh
        if mesh is None:
            return None
        results = [mesh.sharded if sharded else mesh.replicated for sharded in self._outputs.sharded]
        results += [mesh.replicated] * self._mail.num_arrays
        return (*(results * self._repeats), *(v.layout.sharding(mesh) for v in self._state.written))

    def _components_apart(self) -> list[int]:
        """The leaves that are components of per-replica values with different shapes."""
        nodes = distributed_in(self._treedef)
        apart = [n for n in nodes if isinstance(n, PerReplica) and n.num_components is not None]
        if any(node.mesh is not None and not node.mesh.is_local for node in apart):
            raise TracingError(
                "Per-replica values with different shapes can't be arguments of a compiled step that "
                "spans several processes, unless they are batches from `strategy.distribute_dataset` or "
                "`strategy.distribute_batch`. Call the step eagerly, or pad them to one shape."
            )
        dynamic = set(self._dynamic)
        return [i for node in apart for i in node.components if i in dynamic]

    # Running.

    @property
    def written(self) -> list[Variable]:
        """The variables that the step writes."""
        return self._state.written

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The step's devices; None if JAX chooses."""
        return self._mesh

    @property
    def name(self) -> str:
        """The name of the function that was compiled."""
        name = getattr(self._fn, "__qualname__", type(self._fn).__name__)
        return name.rpartition("<locals>.")[2]

    @property
    def shapes(self) -> list[tuple[Variable, jax.ShapeDtypeStruct]]:
        """The step's variables, each with the shape and sharding of its array."""
        return [(v, self._state.shape_of(v)) for v in (*self._state.read, *self._state.written)]

    def compile(self, leaves: list[Any]) -> None:
        """Trace and compile the step for arguments with these `leaves`, unless it is compiled already."""
        if self._is_compiled:
            return
        lowered = self.lower(leaves)
        compiled = lowered.compile() if self._between is None else self._between.compile(lowered)
        self.program = compiled
        uncommit_outputs(compiled, self._plain_outputs())
        arguments = filter(_is_traced, leaves)
        self._memory = StepMemory(self.name, self.shapes, self._mesh, compiled, arguments)
        self._memory.refuse_too_large()
        for variable in self._state.written:
            variable.was_written = True
        self.run = self._make_run()
        self._is_compiled = True

    def _plain_outputs(self) -> list[int]:
        """The indices of the program's outputs that a call returns as their first copy."""
        if self._mesh is None:
            return []
        num_outputs = len(self._outputs.dynamic) + self._mail.num_arrays
        return [call * num_outputs + n for call in range(self._repeats) for n in self._outputs.plain]

    def run_first(self, leaves: list[Any]) -> Any:
        """Run the step for the first time; if it may run out of memory, wait until it has finished."""
        result = self.run(leaves)
        if self._memory is not None and self._memory.may_run_out:
            try:
                self.wait()
                jax.block_until_ready(jax.tree.leaves(result))
            except jax.errors.JaxRuntimeError as error:
                error.add_note(
                    "The step had started, so the variables that it writes have lost their values."
                )
                self._memory.explain(error)
                raise
        return result

    def wait(self) -> None:
        """Block until the variables that the step writes have been computed."""
        jax.block_until_ready([variable._store.arrays[variable._place] for variable in self._state.written])

    def _explain_failure(self, error: BaseException) -> None:
        """Note in `error` which variables were lost; if memory ran out, raise an `OutOfMemoryError`."""
        try:
            if self._memory is not None:
                self._memory.explain(error)
        except OutOfMemoryError as explained:
            self._state.add_note_of_losses(explained)
            raise
        self._state.add_note_of_losses(error)

    def lower(self, leaves: list[Any]) -> jax.stages.Lowered:
        """The lowered step, for arguments with these `leaves`."""
        arguments = self._arguments(self._with_fetched(leaves))
        with self._state.lock:
            read, written = self._state.take()
        with explain_leaks():  # since JAX 0.12, leaks through `jax.custom_vjp` are noticed only here
            return self._jitted.lower(read, written, *arguments)

    def lower_shapes(self, leaves: list[Any]) -> jax.stages.Lowered:
        """The lowered step for arguments that are `jax.ShapeDtypeStruct`s, without any arrays."""
        read, written = (
            list(map(self._state.shape_of, variables))
            for variables in (self._state.read, self._state.written)
        )
        arguments = leaves if self._lookups is None else [*leaves, *self._lookups.empty()]
        with explain_leaks():
            return self._jitted.lower(read, written, *(arguments[i] for i in self._dynamic))

    def _with_fetched(self, leaves: list[Any]) -> list[Any]:
        """Fetch the step's variables from servers; returns the arguments, extended by fetched rows."""
        if self._fetch is None:
            return leaves
        if self._lookups is None:
            self._fetch([])
            return leaves
        place = [*leaves, *[None] * self._lookups.num_arrays]
        arguments = self._arguments_of_call(place)[: self._num_arguments]
        return [*leaves, *self._fetch(arguments)]

    def _arguments(self, leaves: list[Any]) -> list[Any]:
        """The arrays among `leaves`, placed where the program expects them."""
        if self._repeats == 1:
            return self._arguments_of_call(leaves)
        return list(itertools.chain(*map(self._arguments_of_call, _divided(leaves, self._repeats))))

    def _arguments_of_call(self, leaves: list[Any]) -> list[Any]:
        mesh, leaves = self._mesh, list(leaves)
        if mesh is not None:
            for i in self._apart:
                leaves[i] = mesh.replicate(leaves[i])
        for i in self._plain:
            # Leave replicated arrays alone: another placement would recompile.
            if mesh is None or getattr(leaves[i], "sharding", None) != mesh.replicated:
                leaves[i] = free(leaves[i])
        return leaves if len(self._dynamic) == len(self._static) else [leaves[i] for i in self._dynamic]

    def _make_run(self) -> Callable[[list[Any]], Any]:
        """The function that runs the step: in C if its variables are in one store."""
        only = self._state.only
        waits = self._timeout is not None or (self._mesh is not None and self._mesh.must_wait)
        run = self._run_in_python
        if is_built and only is not None and not waits and self._repeats == 1:
            run = self._run_in_c(only)
        if self._between is not None:
            run = self._between.ordered(run)
        return run if self._fetch is None else lambda leaves: run(self._with_fetched(leaves))

    def _run_in_c(self, store: Store) -> Callable[[list[Any]], Any]:
        state, outputs = self._state, self._outputs
        prepares = self._apart or len(self._dynamic) != len(self._static)
        program = Program(
            jitted=self._jitted,
            checked=self._run_checked,
            make_ready=state.make_ready,
            explain=self._explain_failure,
            result=outputs.rebuild if self._mail.num_arrays else outputs.only_result(self._mesh),
            store=store,
            read=tuple(variable._place for variable in state.read),
            written=tuple(variable._place for variable in state.written),
            place=None if prepares else self._arguments,
            plain=() if prepares else tuple(self._plain),
        )
        return (lambda leaves: program(self._arguments(leaves))) if prepares else program

    def _run_in_python(self, leaves: list[Any]) -> Any:
        """Run the step, whatever its variables and results are."""
        state = self._state
        box: list[Any] = []
        results: list[Any] = []

        def finish() -> None:
            if box:
                arrays, new = self._without_new(box[0])
                state.put(new)
                results.append(arrays)
                box.clear()
            state.announce(None)

        leaves = self._arguments(leaves)
        if number_check.value is not None:
            return self._run_checked(leaves)
        with state.lock:
            call = (*state.take(), *leaves)
            state.announce(finish)
            try:
                box[:] = itertools.starmap(self._jitted, (call,))
            except BaseException as error:
                self._explain_failure(error)
                raise
            finally:
                finish()
        return self._finished(results[0])

    def _without_new(self, arrays: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """What the program returned, taken apart: results, and the new arrays of variables."""
        num_results = len(arrays) - len(self._state.written)
        return list(arrays[:num_results]), arrays[num_results:]

    def _finished(self, results: list[Any]) -> Any:
        self._wait(results)
        rebuild = self._outputs.rebuild
        return (
            rebuild(results) if self._repeats == 1 else list(map(rebuild, _divided(results, self._repeats)))
        )

    def _wait(self, results: list[Any]) -> None:
        if self._mesh is not None:
            self._mesh.wait(results)
        if self._timeout is not None:
            await_result(results, self._timeout, "A compiled step")

    def _run_checked(self, arguments: list[Any]) -> Any:
        """Run without donation, and raise before storing the results if one has a NaN or an infinity."""
        not_donating = self._not_donating(arguments)
        with self._state.lock:
            read, written = self._state.take()
            with without_debugging():
                arrays = not_donating(read, written, *arguments)
            results, new = self._without_new(arrays)
            names = ["a result"] * len(results) + [f"the variable {v.name!r}" for v in self._state.written]
            for name, array in zip(names, arrays, strict=True):
                check_numbers(name, array)
            self._state.put(new)
        return self._finished(results)

    def _not_donating(self, arguments: list[Any]) -> jax.stages.Compiled:
        """The program without donation, compiled while the stores are not locked."""
        with self._state.lock:
            read, written = self._state.take()
        placement = tuple(map(_committed_to, (*read, *written, *arguments)))
        if placement not in self._checked:
            with without_debugging():
                self._checked[placement] = self._jit().lower(read, written, *arguments).compile()
        return self._checked[placement]


def _divided(items: Sequence[Any], count: int) -> list[list[Any]]:
    """`items` in `count` parts of equal length, one for each call."""
    size = len(items) // count
    return [list(items[i * size : (i + 1) * size]) for i in range(count)]


def _committed_to(leaf: Any) -> Any:
    """The sharding of an array that JAX may not move; None for others."""
    return leaf.sharding if isinstance(leaf, jax.Array) and leaf.committed else None


def _is_traced(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    weak = isinstance(leaf, jax.Array) and getattr(leaf, "weak_type", False)
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else jnp.result_type(leaf)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=weak)
