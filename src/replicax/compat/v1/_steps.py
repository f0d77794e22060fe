"""Several steps in one call, and the object through which they hand out results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from replicax.contexts import get_replica_context, get_strategy, in_cross_replica_context
from replicax.errors import OutOfRangeError
from replicax.types import ReduceOp, ReduceOpLike
from replicax.values import flatten

__all__ = ["MultiStepContext", "run_steps"]


@final
class MultiStepContext:
    """What the steps of `experimental_run_steps_on_iterator` leave behind.

    >>> from replicax.compat import v1
    >>> context = v1.MultiStepContext()
    >>> context.set_non_tensor_output("seen", 3)
    >>> context.non_tensor_outputs
    {'seen': 3}
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self._last_step_outputs: dict[str, Any] = {}
        self._last_step_outputs_reduce_ops: dict[str, ReduceOp | None] = {}
        self._non_tensor_outputs: dict[str, Any] = {}

    @property
    def run_op(self) -> None:
        """None: when the call returns, the steps are done, and no operation is left to run."""
        return None

    @property
    def last_step_outputs(self) -> dict[str, Any]:
        """What the last step set with `set_last_step_output`, by name."""
        return self._last_step_outputs

    @property
    def non_tensor_outputs(self) -> dict[str, Any]:
        """What the steps set with `set_non_tensor_output`, by name; the last one counts."""
        return self._non_tensor_outputs

    def set_last_step_output(self, name: str, output: Any, reduce_op: ReduceOpLike | None = None) -> None:
        """Keep `output` as a result of the step; the last step's remains.

        Args:
            name: what to call it.
            output: a value; in a replica function, this replica's.
            reduce_op: "SUM" or "MEAN" combines the replicas' values into one. None keeps them apart.
        """
        op = None if reduce_op is None else ReduceOp.parse(reduce_op)
        if in_cross_replica_context():
            self._last_step_outputs[name] = (
                output if op is None else get_strategy().reduce(op, output, axis=None)
            )
        else:
            get_replica_context().merge_call(self._set_merged, args=(name, output, op))
        self._last_step_outputs_reduce_ops[name] = op

    def _set_merged(self, strategy: Any, name: str, output: Any, op: ReduceOp | None) -> None:
        self._last_step_outputs[name] = output if op is None else strategy.reduce(op, output, axis=None)

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Keep any object as a result; set in a replica function, the last replica's remains."""
        self._non_tensor_outputs[name] = output


def run_steps(
    strategy: Any,
    fn: Callable[[MultiStepContext, Any], Any],
    iterator: Any,
    iterations: int,
    initial_loop_values: Mapping[str, Any] | None,
) -> MultiStepContext:
    """Call `fn(context, batch)` for `iterations` batches of `iterator`; returns the context."""
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(
            f"experimental_run_steps_on_iterator(iterations={iterations!r}): make 1 step or more."
        )
    context = MultiStepContext()
    context.last_step_outputs.update(initial_loop_values or {})
    with strategy.scope():
        for step in range(iterations):
            try:
                batch = iterator.get_next()
            except OutOfRangeError as error:
                raise OutOfRangeError(
                    f"The iterator was at its end after {step} of {iterations} steps; initialize() begins "
                    "another pass, and `repeat()` makes a dataset go on."
                ) from error
            fn(context, batch)
    _check_set(context, initial_loop_values)
    return context


def _check_set(context: MultiStepContext, initial: Mapping[str, Any] | None) -> None:
    """Raise if the steps gave a result another structure than its initial value."""
    for name, value in (initial or {}).items():
        got = flatten(context.last_step_outputs[name])[1]
        if got != flatten(value)[1]:
            raise ValueError(
                f"The steps set the output {name!r} to another structure than that of its initial value: "
                f"{got}, not {flatten(value)[1]}."
            )
