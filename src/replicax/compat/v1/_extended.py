"""`StrategyExtended` with the methods that only version 1 has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from replicax.compat.v1._deprecation import deprecated
from replicax.compat.v1._steps import MultiStepContext, run_steps
from replicax.input import ArrayDataset, from_arrays
from replicax.strategies import StrategyExtended as CoreStrategyExtended

__all__ = ["StrategyExtended", "numpy_dataset"]


@final
class StrategyExtended(CoreStrategyExtended):
    """The lower-level API of a v1 strategy, `strategy.extended`.

    >>> from replicax.compat import v1
    >>> v1.MirroredStrategy(["CPU:0", "CPU:1"]).extended.non_slot_devices([])
    ('CPU:0', 'CPU:1')
    """

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> ArrayDataset:
        """A dataset of the rows of arrays; see `Strategy.experimental_make_numpy_dataset`."""
        return numpy_dataset(numpy_input, session)

    @deprecated("a loop over strategy.distribute_dataset(dataset)")
    def experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: Any,
        iterations: int = 1,
        initial_loop_values: Mapping[str, Any] | None = None,
    ) -> MultiStepContext:
        """Call `fn(context, batch)` in cross-replica context, once for each of the next batches.

        If `fn` is an `rx.function`, all steps run in one program, with the same results. It is compiled
        once per number of steps, so always use the same number. Otherwise the steps run as plain Python.

        Args:
            fn: a step. It calls `strategy.run`, and sets results with `context.set_last_step_output` and
                `context.set_non_tensor_output`.
            iterator: from `make_dataset_iterator` or `make_input_fn_iterator`.
            iterations: the number of steps.
            initial_loop_values: default results by name, for names that no step sets.

        Returns:
            The `MultiStepContext` with the results.

        Raises:
            OutOfRangeError: the iterator has too few batches; the previous steps have run.

        >>> from replicax.compat import v1
        >>> strategy = v1.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> iterator = strategy.make_dataset_iterator(rx.from_arrays(np.arange(12)).batch(4))
        >>> @rx.function
        ... def step(context, batch):
        ...     total = strategy.run(lambda x: x.sum(), args=(batch,))
        ...     context.set_last_step_output("total", total, reduce_op="SUM")
        >>> context = strategy.extended.experimental_run_steps_on_iterator(step, iterator, iterations=3)
        >>> context.last_step_outputs
        {'total': Array(38, dtype=int32)}
        """
        return run_steps(self._strategy, fn, iterator, iterations, initial_loop_values)


def numpy_dataset(numpy_input: Any, session: Any) -> ArrayDataset:
    """A dataset of the rows of `numpy_input`; raises if a session is passed."""
    if session is not None:
        raise ValueError(
            f"experimental_make_numpy_dataset(session={session!r}): Replicax has no sessions. Leave out "
            "`session`."
        )
    return from_arrays(numpy_input)
