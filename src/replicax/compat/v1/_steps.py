"""Several steps in one call, and the object that collects their results.

A step that is plain Python is called once for each batch. One that `rx.function` compiles runs all batches
in one program (`step.many`). The context that it then sees belongs to the trace: what a replica function
sets leaves the replicas when they have finished (`Frame.defer`), and the step returns what was set.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import jax

from replicax._jax import is_tracer
from replicax.contexts import current, get_replica_context, get_strategy, in_cross_replica_context
from replicax.errors import OutOfRangeError, TracingError
from replicax.execution import Function
from replicax.strategies import StrategyBase
from replicax.types import ReduceOp, ReduceOpLike
from replicax.values import PerReplica, flatten
from replicax.variables import Deferred

__all__ = ["MultiStepContext", "run_steps"]


@final
class MultiStepContext:
    """The results of `experimental_run_steps_on_iterator`.

    >>> from replicax.compat import v1
    >>> context = v1.MultiStepContext()
    >>> context.set_non_tensor_output("seen", 3)
    >>> context.non_tensor_outputs
    {'seen': 3}
    """

    def __init__(self) -> None:
        """Start without results."""
        self._last_step_outputs: dict[str, Any] = {}
        self._last_step_outputs_reduce_ops: dict[str, ReduceOp | None] = {}
        self._non_tensor_outputs: dict[str, Any] = {}
        self._is_traced = False

    @property
    def run_op(self) -> None:
        """None: the steps have run when the call returns, and no operation is left."""
        return None

    @property
    def last_step_outputs(self) -> dict[str, Any]:
        """The values of the last `set_last_step_output`, by name."""
        return self._last_step_outputs

    @property
    def non_tensor_outputs(self) -> dict[str, Any]:
        """The values of the last `set_non_tensor_output`, by name."""
        return self._non_tensor_outputs

    def set_last_step_output(self, name: str, output: Any, reduce_op: ReduceOpLike | None = None) -> None:
        """Store `output` as a result; later steps replace it.

        Args:
            name: the name of the result.
            output: a value; in a replica function, the value of this replica.
            reduce_op: "SUM" or "MEAN" combines the replicas' values. None returns a per-replica value.

        Raises:
            TracingError: it is called in a compiled replica function of a step that is not compiled.
        """
        op = None if reduce_op is None else ReduceOp.parse(reduce_op)
        if in_cross_replica_context():
            self._set_merged(get_strategy(), name, output, op)
        else:
            get_replica_context().merge_call(self._set_merged, args=(name, output, op))

    def _set_merged(self, strategy: Any, name: str, output: Any, op: ReduceOp | None) -> None:
        output = output if op is None else strategy.reduce(op, output, axis=None)
        self._check_outlives_the_trace(name, output)
        self._last_step_outputs_reduce_ops[name] = op

        def store(output: Any) -> None:
            self._last_step_outputs[name] = output

        _outside_of_replicas(strategy, output, store)

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Store any object as a result; in a replica function, the last replica's object is stored."""
        self._non_tensor_outputs[name] = output

    def _check_outlives_the_trace(self, name: str, output: Any) -> None:
        if not self._is_traced and any(map(is_tracer, jax.tree.leaves(output))):
            raise TracingError(
                f"set_last_step_output({name!r}) was called in a compiled replica function, but the step "
                "that runs it is not compiled, so the value would be lost when the replica function ends. "
                "Decorate the step with `rx.function` instead, or set what `strategy.run` returns."
            )

    @property
    def _results(self) -> tuple[dict[str, Any], ...]:
        return self._last_step_outputs, self._last_step_outputs_reduce_ops, self._non_tensor_outputs

    def _add(self, results: tuple[dict[str, Any], ...]) -> None:
        """Add the results of a later step."""
        for own, later in zip(self._results, results, strict=True):
            own.update(later)


def _outside_of_replicas(strategy: Any, output: Any, store: Callable[[Any], None]) -> None:
    """Store what compiled replicas have computed when they have finished; anything else at once."""
    leaves, treedef = flatten(output)
    computed = [i for i, leaf in enumerate(leaves) if isinstance(leaf, PerReplica) or is_tracer(leaf)]

    def store_outside(arrays: list[Any]) -> None:
        for i, array in zip(computed, arrays, strict=True):
            leaves[i] = array
        store(treedef.unflatten(leaves))

    arrays = [leaves[i] for i in computed]
    if not current().frame.defer(Deferred(strategy, arrays, [None] * len(arrays), store_outside, ())):
        store(output)


def run_steps(
    strategy: StrategyBase,
    fn: Callable[[MultiStepContext, Any], Any],
    iterator: Any,
    iterations: int,
    initial_loop_values: Mapping[str, Any] | None,
) -> MultiStepContext:
    """Call `fn(context, batch)` for `iterations` batches of `iterator`; returns the context."""
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(
            f"experimental_run_steps_on_iterator(iterations={iterations!r}): pass an integer, 1 or more."
        )
    context = MultiStepContext()
    context.last_step_outputs.update(initial_loop_values or {})
    batches = _Batches(iterator, iterations)
    with strategy.scope():
        if isinstance(fn, Function):
            for results in _compiled(fn).many(batches):
                context._add(results)
        else:
            for batch in batches:
                fn(context, batch)
    batches.check_enough()
    _check_set(context, initial_loop_values)
    return context


_steps: weakref.WeakKeyDictionary[Any, Function[..., Any]] = weakref.WeakKeyDictionary()
"""For each compiled `fn(context, batch)`, the step that takes a batch and returns what the context got."""


def _compiled(fn: Function[..., Any]) -> Function[..., Any]:
    if fn._signature is not None:
        raise TypeError(
            f"{fn!r} has an input_signature, which can't describe the context that it is called with. "
            "Leave out `input_signature`."
        )
    if fn.token not in _steps:
        python_function = fn.python_function  # not `fn`, which may keep an instance alive

        @functools.wraps(python_function)
        def step(batch: Any) -> Any:
            context = MultiStepContext()
            context._is_traced = True
            python_function(context, batch)
            return context._results

        _steps[fn.token] = Function(step)
    return _steps[fn.token]


@final
class _Batches:
    """The next batches of an iterator."""

    def __init__(self, iterator: Any, num_batches: int) -> None:
        self._iterator, self._num_batches = iterator, num_batches
        self._num_read = 0
        self._end: OutOfRangeError | None = None

    def __iter__(self) -> Iterator[Any]:
        while self._num_read < self._num_batches:
            try:
                batch = self._iterator.get_next()
            except OutOfRangeError as error:
                self._end = error
                return
            self._num_read += 1
            yield batch

    def check_enough(self) -> None:
        """Raise if there were too few; called when the steps have run."""
        if self._end is not None:
            raise OutOfRangeError(
                f"The iterator ended after {self._num_read} of {self._num_batches} steps. initialize() "
                "starts another pass, and `dataset.repeat()` makes a dataset endless."
            ) from self._end


def _check_set(context: MultiStepContext, initial: Mapping[str, Any] | None) -> None:
    """Raise if a result has another structure than its initial value."""
    for name, value in (initial or {}).items():
        got = flatten(context.last_step_outputs[name])[1]
        if got != flatten(value)[1]:
            raise ValueError(
                f"The output {name!r} has another structure than its initial value: {got}, not "
                f"{flatten(value)[1]}."
            )
