"""Several steps in one call, and the object that collects their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from replicax.contexts import get_replica_context, get_strategy, in_cross_replica_context
from replicax.errors import OutOfRangeError
from replicax.strategies import StrategyBase
from replicax.types import ReduceOp, ReduceOpLike
from replicax.values import flatten

if TYPE_CHECKING:
    from replicax.compat.v1._strategies import Strategy

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
        """
        op = None if reduce_op is None else ReduceOp.parse(reduce_op)
        if in_cross_replica_context():
            self._last_step_outputs[name] = (
                output if op is None else get_strategy().reduce(op, output, axis=None)
            )
        else:
            get_replica_context().merge_call(self._set_merged, args=(name, output, op))
        self._last_step_outputs_reduce_ops[name] = op

    def _set_merged(self, strategy: Strategy, name: str, output: Any, op: ReduceOp | None) -> None:
        self._last_step_outputs[name] = output if op is None else strategy.reduce(op, output, axis=None)

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Store any object as a result; in a replica function, the last replica's object is stored."""
        self._non_tensor_outputs[name] = output


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
    with strategy.scope():
        for step in range(iterations):
            try:
                batch = iterator.get_next()
            except OutOfRangeError as error:
                raise OutOfRangeError(
                    f"The iterator ended after {step} of {iterations} steps. initialize() starts another "
                    "pass, and `dataset.repeat()` makes a dataset endless."
                ) from error
            fn(context, batch)
    _check_set(context, initial_loop_values)
    return context


def _check_set(context: MultiStepContext, initial: Mapping[str, Any] | None) -> None:
    """Raise if a result has another structure than its initial value."""
    for name, value in (initial or {}).items():
        got = flatten(context.last_step_outputs[name])[1]
        if got != flatten(value)[1]:
            raise ValueError(
                f"The output {name!r} has another structure than its initial value: {got}, not "
                f"{flatten(value)[1]}."
            )
