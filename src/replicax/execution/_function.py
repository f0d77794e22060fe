"""`rx.function`: a step compiled into one program, with its variables lifted out.

A step reads and writes variables wherever it likes. To compile it, the step is traced twice: a first,
abstract pass finds the variables that it touches; the second makes a pure function from (arrays only
read, arrays also written, arguments) to (results, new arrays), whose written arrays are donated. Calling
it then costs two list comprehensions over the variables on top of the call of the program.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, final
from weakref import WeakKeyDictionary

import jax
import numpy as np

from replicax._jax import is_transforming, plain
from replicax.collectives import await_result, collect_step_timeouts
from replicax.contexts import current
from replicax.errors import TracingError, VariableError
from replicax.execution._program import (
    EagerCallNeeded,
    FreshTraceNeeded,
    ProgramFrame,
    layout,
)
from replicax.topology import ReplicaMesh
from replicax.values import Component, Mirrored, PerReplica, free, is_array, on_first_replica
from replicax.variables import Variable, VariableCopy, journal, use_frame

__all__ = ["Function", "function"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_logger = logging.getLogger("replicax")

# JAX keeps traces by function and by this value: a new one makes it trace nested functions anew.
_trace_token = jax.make_user_context(None)
_tokens = itertools.count()


def function(fn: Callable[_P, _R]) -> Function[_P, _R]:
    """Compile a step: `strategy.run`, reductions and variables in it become one program.

    The step is traced when it is called with arguments of a new kind (shapes, dtypes, structure), and
    the compiled program is used from then on. Arrays and per-replica values are traced; anything else
    (Python numbers, strings, objects) is a constant of the program, and another value of it compiles
    another program. Without this decorator the same step runs eagerly, with the same results.

    Args:
        fn: the step. It is called only to be traced, sometimes more than once, so it should not have
            other effects than on variables.

    Returns:
        A `Function`: call it like `fn`, or give it to `strategy.run` to compile a replica function.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
    >>> @rx.function
    ... def step(x):
    ...     strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(x,))
    ...     return total.read_value()
    >>> x = strategy.distribute_values_from_function(lambda ctx: jnp.ones(3))
    >>> step(x), step(x)
    (Array(6., dtype=float32), Array(12., dtype=float32))
    """
    return Function(fn)


@final
class Function(Generic[_P, _R]):
    """A compiled step; made by `rx.function`.

    As a method's decorator it compiles the method for each instance.

    >>> double = rx.function(lambda x: 2 * x)
    >>> double(jnp.ones(2)), double(jnp.ones(3)), double.num_programs
    (Array([2., 2.], dtype=float32), Array([2., 2., 2.], dtype=float32), 2)
    """

    def __init__(self, fn: Callable[_P, _R]) -> None:
        """Compile `fn` when it is first called."""
        if not callable(fn):
            raise TypeError(f"rx.function takes a function, got {fn!r}.")
        functools.update_wrapper(self, fn)
        self.python_function = fn
        self._programs: dict[Any, _Program] = {}
        self._for_strategy: WeakKeyDictionary[Any, Function[..., Any]] = WeakKeyDictionary()
        self._attribute = ""

    def __repr__(self) -> str:
        name = getattr(self.python_function, "__qualname__", repr(self.python_function))
        return f"<rx.function {name}, compiled {len(self._programs)} times>"

    def __get__(self, instance: Any, owner: Any = None) -> Function[..., _R]:
        """As a method: one compiled step for each instance."""
        if instance is None:
            return self
        bound = Function(self.python_function.__get__(instance, owner))
        try:
            vars(instance)[self._attribute] = bound
        except TypeError as error:
            raise TypeError(
                f"@rx.function on a method keeps its compiled programs in the instance, but a "
                f"{type(instance).__name__} has no __dict__. Add '__dict__' to its __slots__, or make the "
                "function in __init__."
            ) from error
        return bound

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember the name under which a method is found."""
        self._attribute = name

    @property
    def num_programs(self) -> int:
        """How many programs were compiled: one for each kind of arguments so far."""
        return len(self._programs)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run the step, after compiling it if its arguments are of a new kind."""
        here = current()
        in_replica = here.replica is not None and here.strategy.num_replicas_in_sync > 1
        if in_replica or is_transforming():
            # Part of a larger trace, or of one eager replica, which has to take turns with others.
            return self.python_function(*args, **kwargs)
        leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=_is_variable)
        key = (here.strategy, here.replica is None, treedef, *map(_leaf_key, leaves))
        try:
            program = self._programs.get(key)
        except TypeError as error:
            raise TypeError(_unhashable(self, leaves)) from error
        if program is None:
            program = self._compile(key, leaves, treedef)
        return program(leaves)

    def in_replicas(self, strategy: Any) -> Function[..., Any]:
        """The step "run this function in every replica of `strategy`", compiled as a whole."""
        if strategy not in self._for_strategy:

            def step(*args: Any, **kwargs: Any) -> Any:
                return strategy.run(self.python_function, args, kwargs)

            self._for_strategy[strategy] = Function(functools.wraps(self.python_function)(step))
        return self._for_strategy[strategy]

    def _compile(self, key: Any, leaves: list[Any], treedef: Any) -> _Program:
        if len(self._programs) >= 2:
            _logger.warning(_retraced(self, list(self._programs), key))
        program = _Program(self.python_function, leaves, treedef)
        self._programs[key] = program
        return program


def _is_variable(value: Any) -> bool:
    return isinstance(value, Variable | VariableCopy)


def _leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, leaf.weak_type
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, leaf.dtype, False
    return leaf.ref() if isinstance(leaf, Variable) else (type(leaf), leaf)


def _unhashable(function: Function[..., Any], leaves: list[Any]) -> str:
    def hashable(leaf: Any) -> bool:
        try:
            hash(_leaf_key(leaf))
        except TypeError:
            return False
        return True

    odd = next((leaf for leaf in leaves if not hashable(leaf)), None)
    return (
        f"{function!r} got an argument of type {type(odd).__name__}: {odd!r}. Arguments of a compiled "
        "step are arrays, per-replica values, structures of them, or hashable constants."
    )


def _retraced(function: Function[..., Any], old: list[Any], new: Any) -> str:
    """What is new about a call that needs another program."""
    last = old[-1]
    changes = []
    if last[0] is not new[0] or last[1] != new[1]:
        changes.append("it is called under another strategy or in another context")
    if last[2] != new[2]:
        changes.append(f"the structure of the arguments was {last[2]} and is {new[2]}")
    else:
        for i, (before, after) in enumerate(zip(last[3:], new[3:], strict=True)):
            if before != after:
                changes.append(f"argument leaf {i} was {_show(before)} and is {_show(after)}")
    return (
        f"{function!r} is traced and compiled again: {'; '.join(changes) or 'the arguments are new'}. "
        "Compiling takes long compared to a step. Pass Python numbers that change as arrays "
        "(`jnp.asarray(x)`), and keep shapes the same."
    )


def _show(leaf_key: Any) -> str:
    if isinstance(leaf_key, tuple) and len(leaf_key) == 3:
        return f"{leaf_key[1]}{list(leaf_key[0])}"
    return repr(leaf_key[1]) if isinstance(leaf_key, tuple) else "another variable"


@final
class _Program:
    """A step traced and compiled for one kind of arguments."""

    def __init__(self, fn: Callable[..., Any], leaves: list[Any], treedef: Any) -> None:
        self._fn, self._treedef = fn, treedef
        self._dynamic = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
        self._static = [None if is_array(leaf) else leaf for leaf in leaves]
        self._fresh = False
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

    def _step(self, read: list[Any], written: list[Any], arrays: list[Any]) -> Any:
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
        loose = [v for v in self._variables if v._loose]
        if loose:
            self._settle(loose)
        if self._mesh is not None:
            for i in self._apart:
                leaves[i] = self._mesh.replicate(leaves[i])
            for i in self._plain:
                leaves[i] = free(leaves[i])
        read = [v._array for v in self._read]
        written = [v._array for v in self._written]
        if self._moved_read or self._moved_written:
            self._bring(read, self._moved_read)
            self._bring(written, self._moved_written)
        arrays = [leaves[i] for i in self._dynamic]
        results, new = self._jitted(read, written, arrays)
        for variable, array in zip(self._written, new, strict=True):
            variable._array = array
        for i in self._moved_written:
            self._take_back(self._written[i])
        if self._mesh is not None:
            self._mesh.wait(results if results else new)
            if self._timeout is not None:
                await_result((results, new), self._timeout, "A compiled step")
        return self._outputs.rebuild(results, self._mesh)

    def _settle(self, loose: list[Variable]) -> None:
        written = {id(v) for v in self._written}
        for variable in loose:
            variable._settle(for_writing=id(variable) in written)

    def _bring(self, arrays: list[Any], moved: list[int]) -> None:
        assert self._mesh is not None
        for i in moved:
            arrays[i] = self._mesh.replicate(on_first_replica(arrays[i]))

    def _take_back(self, variable: Variable) -> None:
        """Put the new state of a moved variable where it rests."""
        assert variable._array is not None
        variable._array = variable._resting(on_first_replica(variable._array))


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
        self.leaves, self.treedef = jax.tree.flatten(result, is_leaf=_is_variable)
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

    def rebuild(self, arrays: list[Any], mesh: ReplicaMesh | None) -> Any:
        """The result of one run, from its arrays."""
        leaves = list(self.leaves)
        if mesh is not None:
            for n in self.plain:
                arrays[n] = on_first_replica(arrays[n])
            for n, replica in self.apart:
                arrays[n] = mesh.split_replicated(arrays[n])[replica]
        for i, array in zip(self.dynamic, arrays, strict=True):
            leaves[i] = array
        return self.treedef.unflatten(leaves)
