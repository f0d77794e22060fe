"""`experimental_run_steps_on_iterator`: several steps in one call, and the context with their results.

A plain Python step is called once per batch. A step made by `rx.function` runs all batches in one program
(`step.many`). It then sees a context of its trace: values set in a replica function are stored once the
replicas have finished (`Frame.defer`), and the compiled step returns them as results.
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
from replicax.strategies import Strategy, StrategyBase
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
        self._last_step_outputs: dict[str, Any] = {}
        self._last_step_outputs_reduce_ops: dict[str, ReduceOp | None] = {}
        self._non_tensor_outputs: dict[str, Any] = {}
        self._is_traced = False

    @property
    def run_op(self) -> None:
        """None: the steps have run when the call returns."""
        return None

    @property
    def last_step_outputs(self) -> dict[str, Any]:
        """What `set_last_step_output` stored last, by name."""
        return self._last_step_outputs

    @property
    def non_tensor_outputs(self) -> dict[str, Any]:
        """What `set_non_tensor_output` stored last, by name."""
        return self._non_tensor_outputs

    def set_last_step_output(self, name: str, output: Any, reduce_op: ReduceOpLike | None = None) -> None:
        """Store `output` as a result; later steps replace it.

        Args:
            name: the name of the result.
            output: a value; in a replica function, this replica's value.
            reduce_op: "SUM" or "MEAN" combines the replicas' values. None keeps a per-replica value.

        Raises:
            TracingError: it was called in a compiled replica function, but the step is not compiled.
        """
        op = None if reduce_op is None else ReduceOp.parse(reduce_op)
        if in_cross_replica_context():
            self._set_merged(get_strategy(), name, output, op)
        else:
            get_replica_context().merge_call(self._set_merged, args=(name, output, op))

    def _set_merged(self, strategy: Strategy, name: str, output: Any, op: ReduceOp | None) -> None:
        output = output if op is None else strategy.reduce(op, output, axis=None)
        self._check_outlives_the_trace(name, output)
        self._last_step_outputs_reduce_ops[name] = op

        def store(output: Any) -> None:
            self._last_step_outputs[name] = output

        _store_after_replicas(strategy, output, store)

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Store any object as a result; in a replica function, the last replica's object wins."""
        self._non_tensor_outputs[name] = output

    def _check_outlives_the_trace(self, name: str, output: Any) -> None:
        if not self._is_traced and any(map(is_tracer, jax.tree.leaves(output))):
            raise TracingError(
                f"set_last_step_output({name!r}) was called in a compiled replica function, but the step "
                "itself is not compiled, so the value can't leave the trace. Decorate the step with "
                "`rx.function` instead, or return the value from `strategy.run` and set it in the step."
            )

    @property
    def _results(self) -> tuple[dict[str, Any], ...]:
        return self._last_step_outputs, self._last_step_outputs_reduce_ops, self._non_tensor_outputs

    def _add(self, results: tuple[dict[str, Any], ...]) -> None:
        """Add the results of a later step."""
        for own, later in zip(self._results, results, strict=True):
            own.update(later)


def _store_after_replicas(strategy: StrategyBase, output: Any, store: Callable[[Any], None]) -> None:
    """Store the output: after the `shard_map` if it was traced in replicas, otherwise at once."""
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
    """Call `fn(context, batch)` for the next `iterations` batches; returns the context."""
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(
            f"experimental_run_steps_on_iterator(iterations={iterations!r}): pass an integer, 1 or more."
        )
    context = MultiStepContext()
    context.last_step_outputs.update(initial_loop_values or {})
    batches = _Batches(iterator, iterations)
    with strategy.scope():
        if isinstance(fn, Function):
            for results in _compile_step(fn).many(batches):
                context._add(results)
        else:
            for batch in batches:
                fn(context, batch)
    batches.check_enough()
    _check_set(context, initial_loop_values)
    return context


_steps: weakref.WeakKeyDictionary[Any, Function[..., Any]] = weakref.WeakKeyDictionary()
"""Compiled `fn(context, batch)` -> a compiled step that takes a batch and returns the context's results."""


def _compile_step(fn: Function[..., Any]) -> Function[..., Any]:
    if fn._signature is not None:
        raise TypeError(
            f"{fn!r} has an input_signature, which can't describe the context that it is called with. "
            "Leave out `input_signature`."
        )
    if fn.token not in _steps:
        python_function = fn.python_function  # closing over `fn` could keep an instance alive

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
        """Raise if there were too few batches; call this after the steps have run."""
        if self._end is not None:
            raise OutOfRangeError(
                f"The iterator ended after {self._num_read} of {self._num_batches} steps. initialize() "
                "starts another pass, and `dataset.repeat()` makes a dataset endless."
            ) from self._end


def _check_set(context: MultiStepContext, initial: Mapping[str, Any] | None) -> None:
    """Raise if the structure of a result differs from that of its initial value."""
    for name, value in (initial or {}).items():
        got = flatten(context.last_step_outputs[name])[1]
        if got != flatten(value)[1]:
            raise ValueError(
                f"The structure of the output {name!r} differs from its initial value: it is {got}, but "
                f"expected {flatten(value)[1]}."
            )
