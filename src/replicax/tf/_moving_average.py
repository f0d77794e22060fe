"""`tf.train.ExponentialMovingAverage`: moving averages of variables, held in variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from replicax.training import create_averages, move_averages, once_for_all_replicas, warmed_up
from replicax.variables import Variable

__all__ = ["ExponentialMovingAverage"]


@final
class ExponentialMovingAverage:
    """Moving averages of variables: `apply` sets `average = decay * average + (1 - decay) * value`.

    Call `apply` after the variables were written, in a replica function or outside. The averages are
    variables with the same layout, so `tf.train.Checkpoint` saves them.

    Args:
        decay: the decay; closer to 1 averages over more steps.
        num_updates: a number or a variable that counts steps; the decay is smaller in the first steps.
        zero_debias: must be False: an average starts at the value of its variable.
        name: the suffix of the averages' names.

    >>> from replicax import tf
    >>> v = tf.Variable(1.0)
    >>> average = tf.train.ExponentialMovingAverage(decay=0.5)
    >>> average.apply([v])
    >>> _ = v.assign(3.0)
    >>> average.apply([v])
    >>> float(average.average(v))
    2.0
    """

    def __init__(
        self,
        decay: Any,
        num_updates: Any = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        if zero_debias:
            raise NotImplementedError(
                "ExponentialMovingAverage(zero_debias=True): an average starts at the value of its "
                "variable, which needs no correction. Leave it out, or use `optax.ema(decay, debias=True)`."
            )
        self._decay, self._num_updates, self.name = decay, num_updates, name
        self._averages: dict[Any, Variable] = {}

    def apply(self, var_list: Iterable[Variable]) -> None:
        """Update the averages; a new variable gets an average that starts at its value."""
        variables = list(var_list)
        for variable in variables:
            if not isinstance(variable, Variable):
                raise TypeError(f"ExponentialMovingAverage.apply takes variables, got {variable!r}.")
        once_for_all_replicas(lambda: self._apply(variables))

    def _apply(self, variables: list[Variable]) -> None:
        if new := [variable for variable in variables if variable.ref() not in self._averages]:
            refs = (variable.ref() for variable in new)
            self._averages.update(zip(refs, create_averages(new, self.name), strict=True))
        averages = [self._averages[variable.ref()] for variable in variables]
        move_averages(averages, variables, self._decay_now())

    def _decay_now(self) -> Any:
        return self._decay if self._num_updates is None else warmed_up(self._decay, self._num_updates)

    def average(self, var: Variable) -> Variable | None:
        """The average of a variable; None if it has none."""
        return self._averages.get(var.ref())

    def average_name(self, var: Variable) -> str:
        """The name of the average of a variable."""
        return f"{var.name.removesuffix(':0')}/{self.name}"

    def variables_to_restore(self, moving_avg_variables: Any = None) -> dict[str, Variable]:
        """The averaged variables, by the names of their averages."""
        return {self.average_name(ref.deref()): ref.deref() for ref in self._averages}
