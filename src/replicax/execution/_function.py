"""`rx.function`: a step compiled into one program, with its variables as inputs and outputs.

A `Function` has one `CompiledStep` for each kind of arguments (structure, shapes, dtypes, constants). A
call looks it up by the abstract value of each array, `array.aval`, which JAX has already computed. The
slower, exact key is computed only for arguments that have not been seen before.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, final, overload

import jax

from replicax._jax import (
    ArrayImpl,
    disable_jit,
    eval_trace,
    first_copy,
    number_check,
    restore_trace,
    settings_number,
    trace_settings,
    trace_state,
)
from replicax._native import Caller, configure
from replicax._recording import is_transforming, settled
from replicax.contexts import StrategyProtocol, context_stack, current
from replicax.execution._argument_keys import (
    cause_of_retrace,
    leaf_key,
    retrace_warning,
    unusable_argument,
)
from replicax.execution._compiled import CompiledStep
from replicax.execution._loop import Loop
from replicax.execution._outputs import mask_leaves, shared_masks
from replicax.execution._signals import signals_deferred
from replicax.execution._traced_values import explain_leaks
from replicax.input import DistributedDataset, GivesSource
from replicax.values import PerReplica, check_signature, converted
from replicax.variables import EagerFrame, is_variable

__all__ = ["Function", "function", "in_replicas"]

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_R = TypeVar("_R")

_logger = logging.getLogger("replicax")


@overload
def function(fn: Callable[_P, _R], *, input_signature: Sequence[Any] | None = ...) -> Function[_P, _R]: ...
@overload
def function(
    fn: None = ..., *, input_signature: Sequence[Any] | None = ...
) -> Callable[[Callable[_P, _R]], Function[_P, _R]]: ...
def function(fn: Any = None, *, input_signature: Sequence[Any] | None = None) -> Any:
    """Compile a step: `strategy.run`, reductions and variables in it become one program.

    The step is traced and compiled when it is called with arguments of a new kind (shapes, dtypes,
    structure); later calls reuse the program. Arrays and per-replica values are traced. Anything else
    (Python numbers, strings, objects) is a constant of the program, so a new value compiles another
    program. Without this decorator the same step runs eagerly, with the same results, but then functions
    that JAX itself compiles (`lax.scan`, `jax.jit`) can't read variables or use collectives.

    A function that takes a dataset or an iterator as an argument, to loop over it, is not traced: the loop
    runs in Python, and every `strategy.run` in it is compiled.

    Args:
        fn: the step. It is called only to trace it, sometimes more than once, so it should have no side
            effects except on variables. Leave it out to get a decorator.
        input_signature: what each positional argument must be: a structure of `rx.TensorSpec` or
            `jax.ShapeDtypeStruct`, or the `element_spec` of a distributed dataset. Other arguments raise an
            error instead of compiling another program. A size of None allows any size, and each size
            compiles its own program.

    Returns:
        A `Function`: call it like `fn`, or pass it to `strategy.run` to compile a replica function.

    Raises:
        TypeError: `fn` is not a function, or, in a call, an argument does not match `input_signature`.

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

    >>> @rx.function(input_signature=[rx.TensorSpec([None], jnp.float32)])
    ... def total(x):
    ...     return jnp.sum(x)
    >>> total(jnp.ones(3))
    Array(3., dtype=float32)
    >>> total(jnp.ones((2, 2)))    # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: Argument 0 of ... expected TensorSpec(shape=(None,), dtype=float32), got float32[2, 2].
    """
    if fn is None:
        return functools.partial(Function, input_signature=input_signature)
    return Function(fn, input_signature)


@final
class Function(Caller, Generic[_P, _R]):
    """A compiled step, created by `rx.function`.

    A decorated method is compiled for each instance.

    >>> double = rx.function(lambda x: 2 * x)
    >>> double(jnp.ones(2)), double(jnp.ones(3)), double.num_programs
    (Array([2., 2.], dtype=float32), Array([2., 2., 2.], dtype=float32), 2)
    """

    # `_bound` maps each instance to a Function that refers to the instance weakly. `instance.method`
    # returns an object that shares its `__dict__` and keeps the instance alive, like a bound method.
    __slots__ = ("__dict__", "__weakref__", "_instance")

    def __init__(self, fn: Callable[_P, _R], input_signature: Sequence[Any] | None = None) -> None:
        """Compile `fn` when it is first called."""
        if not callable(fn):
            raise TypeError(f"rx.function takes a function, got {fn!r}.")
        if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
            raise TypeError(
                f"rx.function takes a function that returns its results, but {fn!r} is a generator or "
                "coroutine function, whose body would run only after the trace. Compile the step, and "
                "call it from the generator or coroutine."
            )
        functools.update_wrapper(self, fn)
        self._signature = None if input_signature is None else tuple(input_signature)
        self.python_function = fn
        self.token = _Token()
        self._programs: dict[Any, CompiledStep] = {}
        self._loops: dict[Any, CompiledStep] = {}  # by the number of steps and the kind of arguments
        # The programs' `run` functions by the key that a call computes; several keys may share a program.
        self._known = {}
        self._compiling = threading.RLock()
        self._bound: dict[int, Function[..., Any]] = {}
        self._loop: Loop | None = None

    def __repr__(self) -> str:
        name = getattr(self.python_function, "__qualname__", repr(self.python_function))
        return f"<rx.function {name}, compiled {self.num_programs} times>"

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: Function[Concatenate[Any, _Q], _R], instance: object, owner: Any = None
    ) -> Function[_Q, _R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """The compiled method of one instance; it lives as long as the instance."""
        if instance is None:
            return self
        key = id(instance)
        if key not in self._bound:
            self._bound[key] = self._bind(instance)
        method = self._bound[key]._alias()
        method._instance = instance
        return method

    def _alias(self) -> Function[_P, _R]:
        """Another object that stands for the same compiled step."""
        alias: Function[_P, _R] = Function.__new__(Function)
        alias.__dict__, alias._known = self.__dict__, self._known
        return alias

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and other.__dict__ is self.__dict__

    def __hash__(self) -> int:
        return hash((Function, id(self.python_function)))

    def __reduce__(self) -> Any:
        """Pickle it so that another process makes one object of it, however often it is sent."""
        instance = getattr(self, "_instance", None)
        if instance is not None:
            return getattr, (instance, self.python_function.__name__)
        return _received, (self.token.name, self.python_function, self._signature)

    def _bind(self, instance: Any) -> Function[..., _R]:
        key = id(instance)
        try:
            reference = weakref.ref(instance, lambda _: self._bound.pop(key, None))
        except TypeError as error:
            raise TypeError(
                f"@rx.function on a method needs instances that can be weakly referenced, but a "
                f"{type(instance).__name__} can't. Add '__weakref__' to its __slots__."
            ) from error
        unbound: Callable[..., Any] = self.python_function

        @functools.wraps(unbound)
        def method(*args: Any, **kwargs: Any) -> Any:
            return unbound(reference(), *args, **kwargs)

        return Function(method, self._signature)

    @property
    def num_programs(self) -> int:
        """The number of compiled programs: one for each kind of arguments so far."""
        return len(self._programs) + len(self._loops)

    @property
    def name(self) -> str:
        """The name of the function that is compiled."""
        name = getattr(self.python_function, "__qualname__", type(self.python_function).__name__)
        return name.rpartition("<locals>.")[2]

    @property
    def programs(self) -> list[CompiledStep]:
        """The compiled programs, in the order of their first compilation."""
        return [*self._programs.values(), *self._loops.values()]

    @property
    def retraces(self) -> list[str]:
        """Why each program after the first was needed: what changed since the one before it.

        >>> double = rx.function(lambda x: 2 * x)
        >>> double(jnp.ones(2)), double(jnp.ones(3))
        (Array([2., 2.], dtype=float32), Array([2., 2., 2.], dtype=float32))
        >>> double.retraces
        ['argument 0 was float32[2] and is float32[3]']
        """
        calls = list(itertools.starmap(cause_of_retrace, itertools.pairwise(self._programs)))
        loops = [
            f"many() was called with {last} steps and is now called with {count}"
            for (last, _), (count, _) in itertools.pairwise(self._loops)
        ]
        return [*calls, *loops]

    def lower(self, *args: _P.args, **kwargs: _P.kwargs) -> jax.stages.Lowered:
        """The step traced for these arguments, as `jax.jit(...).lower` returns it; nothing is run.

        >>> v = rx.Variable(jnp.zeros(1000))
        >>> @rx.function
        ... def step(x):
        ...     v.assign_add(x)
        >>> step.lower(jnp.ones(1000)).compile().memory_analysis().argument_size_in_bytes
        8000
        """
        leaves, treedef = _flatten((args, kwargs))
        with self._compiling:
            return self._find_program(args, kwargs, leaves, treedef).lower(leaves)

    def many(self, *arguments: Iterable[Any]) -> list[_R]:
        """Run many steps in one program: the same as `list(map(step, *arguments))`, but faster.

        A short step takes less time than Python needs to start it. So the program runs consecutive calls
        with the same shapes in a loop; a batch of another shape, such as the last one, is a separate call.
        Variables, random keys and metrics end up as after that many calls. The loop is compiled for each
        number of steps, so always use the same number, such as 10.

        Args:
            arguments: for each argument of the step, an iterable of its values in the calls.

        Returns:
            The list of the calls' results. It returns when all calls have been dispatched.

        >>> import itertools
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     seen = rx.Variable(0.0, aggregation="SUM")
        >>> @rx.function
        ... def step(batch):
        ...     strategy.run(lambda x: seen.assign_add(x.sum()), args=(batch,))
        ...     return seen.read_value()
        >>> batches = iter(strategy.distribute_dataset(rx.from_arrays(np.ones(10, np.float32)).batch(4)))
        >>> [float(total) for total in step.many(itertools.islice(batches, 10))]
        [4.0, 8.0, 10.0]
        """
        calls = list(zip(*arguments, strict=True))
        stack = context_stack.get()
        if is_transforming() or disable_jit.value or (stack and not stack[-1].is_outside):
            return [self(*call) for call in calls]  # pyright: ignore[reportCallIssue]
        flat = [jax.tree.flatten((call, {}), is_leaf=is_variable) for call in calls]
        results: list[_R] = []
        for kind, group in itertools.groupby(range(len(calls)), lambda i: self._kind(*flat[i])):
            first, *others = group
            if others:
                results += self._run_loop(kind, [flat[i][0] for i in (first, *others)], flat[first][1])
            else:
                results.append(self(*calls[first]))  # pyright: ignore[reportCallIssue]
        return results

    def _run_loop(self, kind: Any, calls: list[list[Any]], treedef: Any) -> list[_R]:
        """Run calls with the same kind of arguments in one program."""
        key = (len(calls), kind)
        leaves = [leaf for call in calls for leaf in call]
        step = self._loops.get(key)
        if step is not None:
            return step.run(leaves)
        with self._compiling:
            self._check_signature(*treedef.unflatten(calls[0]))
            step = CompiledStep(self.python_function, calls[0], treedef, repeats=len(calls))
            step.compile(leaves)
            self._loops[key] = step
        with explain_leaks(), signals_deferred():
            return step.run(leaves)

    if TYPE_CHECKING:

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            """Run the step; compile it first if its arguments are of a new kind."""
            ...

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step; compile it first if its arguments are of a new kind.

        `Caller.__call__` does the same, and calls this unless the arguments are arrays of a known kind.
        """
        stack = context_stack.get()
        if trace_state.value is not eval_trace or disable_jit.value or (stack and not stack[-1].is_outside):
            return self._call_inside(args, kwargs)
        # In the default replica context, the key is that of an empty stack: both use the same programs.
        key: list[Any] = [settings_number()]
        if stack and stack[-1].replica is None:
            key.append(stack[-1].strategy)
        leaves: list[Any] = []
        # The arguments are nearly always arrays or per-replica arrays, without a structure to flatten.
        for argument in args:
            array: Any = argument
            if type(argument) is PerReplica and argument._mask is None:
                array = argument._array
                key.append(argument._layout)
            if type(array) is not ArrayImpl:
                return self._call_with_structure(args, kwargs)
            key.append(array.aval)
            leaves.append(array)
        if kwargs:
            return self._call_with_structure(args, kwargs)
        run = self._known.get(tuple(key))
        return run(leaves) if run is not None else self._call_first(tuple(key), args, kwargs)

    def _call_with_structure(self, args: Any, kwargs: Any) -> Any:
        args = args if self._signature is None else converted(self._signature, args)
        leaves, treedef = _flatten((args, kwargs))
        here = current()
        strategy = here.strategy if here.replica is None else None
        try:
            kinds = [x.aval if type(x) is ArrayImpl else leaf_key(x) for x in leaves]
            key = (settings_number(), strategy, treedef, *kinds)
            run = self._known.get(key)
        except TypeError as error:
            raise TypeError(unusable_argument(self, leaves)) from error
        return run(leaves) if run is not None else self._call_first(key, args, kwargs)

    def _call_inside(self, args: Any, kwargs: Any) -> Any:
        restore_trace()
        here = current()
        in_replica = here.replica is not None and here.strategy.num_replicas_in_sync > 1
        in_update = here.update_replica_id is not None
        if in_replica or in_update or here.tapes or is_transforming() or disable_jit.value:
            # Call it inline: it is part of a larger trace, of what a tape records, of an eager replica,
            # which takes turns with the others, or of the update of one copy of a variable.
            args = args if self._signature is None else converted(self._signature, args)
            self._check_signature(args, kwargs)
            python_function: Callable[..., Any] = self.python_function
            return python_function(*args, **kwargs)
        return self._call_first(None, args, kwargs)

    def _call_first(self, key: Any, args: Any, kwargs: Any) -> Any:
        """Find or compile the program, cache it under `key` unless that is None, and run it."""
        leaves, treedef = _flatten((args, kwargs))
        if any(isinstance(leaf, DistributedDataset | GivesSource | Iterator) for leaf in leaves):
            return self._call_as_loop(args, kwargs)
        with self._compiling:
            step = self._find_program(args, kwargs, leaves, treedef)
            step.compile(leaves)
        if key is not None:
            self._remember(key, step, leaves, treedef)
        frame = current().frame
        if isinstance(frame, EagerFrame):
            frame.before_write(step.written)
        with explain_leaks(), signals_deferred():
            return step.run_first(leaves)

    def _remember(self, key: Any, step: CompiledStep, leaves: list[Any], treedef: Any) -> None:
        """Cache the program, so that later calls with this `key` find it at once."""
        if not step.masks:
            self._known[key] = step.run
            return
        known = self._known.setdefault(key, _PaddedRuns(self, key, step.masks, treedef))
        assert isinstance(known, _PaddedRuns)
        known.runs[shared_masks(step.masks, leaves)] = step.run

    def _find_program(self, args: Any, kwargs: Any, leaves: list[Any], treedef: Any) -> CompiledStep:
        key = self._kind(leaves, treedef)
        step = self._programs.get(key)
        if step is None:
            self._check_signature(args, kwargs)
            if len(self._programs) >= 2 and self._signature is None:
                _logger.warning(retrace_warning(self, list(self._programs)[-1], key))
            step = self._programs[key] = CompiledStep(self.python_function, leaves, treedef)
        return step

    def _kind(self, leaves: list[Any], treedef: Any) -> tuple[Any, ...]:
        """What a program depends on: it serves all calls for which this is equal."""
        here = current()
        try:
            batches = shared_masks(mask_leaves(treedef), leaves)
            context = (here.replica is None, batches, settings_number())
            key = (here.strategy, context, treedef, *map(leaf_key, leaves))
            hash(key)
        except TypeError as error:
            raise TypeError(unusable_argument(self, leaves)) from error
        return key

    def _call_as_loop(self, args: Any, kwargs: Any) -> Any:
        if self._loop is None:
            self._loop = Loop(repr(self), Function)
        return self._loop(self.python_function, args, kwargs)

    def _check_signature(self, args: Any, kwargs: Any) -> None:
        if self._signature is None:
            return
        if kwargs:
            raise TypeError(
                f"{self!r} has an input_signature, which names positional arguments only; got the keyword "
                f"arguments {sorted(kwargs)}."
            )
        check_signature(self._signature, args, repr(self))


def _flatten(arguments: Any) -> tuple[list[Any], Any]:
    leaves, treedef = jax.tree.flatten(arguments, is_leaf=is_variable)
    return list(map(settled, leaves)), treedef


@final
class _PaddedRuns:
    """The programs for one kind of arguments with padded batches.

    They differ in which arguments belong to the same batch.
    """

    def __init__(self, function: Function[..., Any], key: Any, masks: list[int], treedef: Any) -> None:
        self.runs: dict[tuple[int, ...], Callable[[list[Any]], Any]] = {}
        self._function = function._alias()  # not `function`, which may keep an instance alive
        self._key, self._masks, self._treedef = key, masks, treedef

    def __call__(self, leaves: list[Any]) -> Any:
        run = self.runs.get(shared_masks(self._masks, leaves))
        if run is not None:
            return run(leaves)
        return self._function._call_first(self._key, *self._treedef.unflatten(leaves))


@final
class _Token:
    """Identifies a `Function`, or a method of one instance, as the key of a weak dictionary."""

    @functools.cached_property
    def name(self) -> str:
        """A name that is unique across functions and processes."""
        return uuid.uuid4().hex


_functions: dict[str, Function[..., Any]] = {}
"""Functions that were unpickled, by the names of their tokens."""


def _received(name: str, fn: Callable[..., Any], signature: Any) -> Function[..., Any]:
    if name not in _functions:
        _functions[name] = Function(fn, signature)
        _functions[name].token.name = name
    return _functions[name]


def in_replicas(strategy: StrategyProtocol, fn: Function[..., Any]) -> Function[..., Any]:
    """A compiled step that runs `fn` in every replica of `strategy`."""
    steps = strategy.compiled_runs
    if fn.token not in steps:
        python_function = fn.python_function  # not `fn`, which may keep an instance alive

        def step(*args: Any, **kwargs: Any) -> Any:
            return strategy.run(python_function, args, kwargs)

        steps[fn.token] = Function(functools.wraps(python_function)(step), fn._signature)
    return steps[fn.token]


configure(
    per_replica=PerReplica,
    array=ArrayImpl,
    context_stack=context_stack,
    trace_state=trace_state,
    eval_trace=eval_trace,
    disable_jit=disable_jit,
    number_check=number_check,
    first_copy=first_copy,
    trace_settings=trace_settings,
    settings_number=settings_number,
)
