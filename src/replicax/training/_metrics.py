"""Metrics: running numbers that replicas update without communication, combined when they are read."""

from __future__ import annotations

import abc
from typing import Any, final

import jax.numpy as jnp

from replicax.contexts import current
from replicax.training._losses import matched
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.variables import Variable

__all__ = [
    "Accuracy",
    "Mean",
    "MeanSquaredError",
    "Metric",
    "SparseCategoricalAccuracy",
    "Sum",
]


class Metric(abc.ABC):
    """The base of metrics: define `update_state` and `result` on variables made by `add_weight`.

    Make metrics in the strategy's scope, update them in replica functions, and read them outside, where the
    parts of all replicas are combined.

    >>> class Largest(rx.Metric):
    ...     def __init__(self):
    ...         super().__init__("largest")
    ...         self.count = self.add_weight("count")
    ...     def update_state(self, values):
    ...         self.count.assign_add(jnp.sum(values > 10).astype(jnp.float32))
    ...     def result(self):
    ...         return self.count.read_value()
    >>> metric = Largest()
    >>> metric.update_state(jnp.array([5.0, 11.0, 12.0]))
    >>> metric.result()
    Array(2., dtype=float32)
    """

    def __init__(self, name: str) -> None:
        """Call this first, with the metric's name."""
        self.name = name
        self.variables: list[Variable] = []

    def add_weight(self, name: str, shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> Variable:
        """A variable that starts at zero; each replica has a part, and reading adds the parts.

        Args:
            name: its name, after the metric's.
            shape: its shape.
            dtype: its dtype.
        """
        variable = current().strategy.create_variable(
            jnp.zeros(shape, dtype),
            name=f"{self.name}/{name}",
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.SUM,
        )
        self.variables.append(variable)
        return variable

    @abc.abstractmethod
    def update_state(self, *args: Any, **kwargs: Any) -> Any:
        """Take new values into account."""

    @abc.abstractmethod
    def result(self) -> Any:
        """The metric so far; in a replica function, that of the replica's own part."""

    def reset_state(self) -> None:
        """Begin anew, outside of replica functions."""
        for variable in self.variables:
            variable.assign(jnp.zeros(variable.shape, variable.dtype), read_value=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def checkpoint_items(self) -> dict[str, Any]:
        """What a checkpoint holds of it: its variables."""
        items: dict[str, Any] = {}
        for variable in self.variables:
            name = variable.name.removesuffix(":0").replace("/", ".")
            items[f"{name}_{len(items)}" if name in items else name] = variable
        return items


def _weights(values: Any, sample_weight: Any) -> Any:
    """The weight of each value: what the user says, and nothing for padding."""
    weights = jnp.ones(values.shape, jnp.float32)
    if sample_weight is not None:
        weights = weights * matched(sample_weight, values, "sample_weight").astype(jnp.float32)
    replica = current().replica
    mask = None if replica is None else replica.example_mask
    if mask is not None and values.ndim and mask.shape[0] == values.shape[0]:
        weights = jnp.where(mask.reshape(mask.shape + (1,) * (values.ndim - 1)), weights, 0)
    return weights


class _WeightedMean(Metric):
    """Sum and weight of values."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.total = self.add_weight("total")
        self.count = self.add_weight("count")

    def _add(self, values: Any, sample_weight: Any) -> None:
        values = jnp.asarray(values, jnp.float32)
        weights = _weights(values, sample_weight)
        # Zero times a padded row that is not a number would be none either.
        self.total.assign_add(jnp.sum(jnp.where(weights == 0, 0, values * weights)), read_value=False)
        self.count.assign_add(jnp.sum(weights), read_value=False)

    @final
    def result(self) -> Any:
        """The mean so far; 0 before the first value."""
        count = self.count.read_value()
        return jnp.where(count == 0, 0.0, self.total.read_value() / jnp.where(count == 0, 1.0, count))


@final
class Mean(_WeightedMean):
    """The mean of values.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     loss = rx.Mean("loss")
    >>> for x in strategy.distribute_dataset(rx.from_arrays(jnp.arange(5.0)).batch(3)):
    ...     strategy.run(loss.update_state, args=(x,))
    >>> loss.result()
    Array(2., dtype=float32)
    """

    def __init__(self, name: str = "mean") -> None:
        """Make it in the strategy's scope."""
        super().__init__(name)

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Take `values`, an array or a number, into account, weighted if `sample_weight` says so."""
        self._add(values, sample_weight)


@final
class Sum(Metric):
    """The sum of values.

    >>> total = rx.Sum()
    >>> total.update_state(jnp.array([1.0, 2.0]))
    >>> total.update_state(3.0)
    >>> total.result()
    Array(6., dtype=float32)
    """

    def __init__(self, name: str = "sum") -> None:
        """Make it in the strategy's scope."""
        super().__init__(name)
        self.total = self.add_weight("total")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Take `values`, an array or a number, into account, weighted if `sample_weight` says so."""
        values = jnp.asarray(values, jnp.float32)
        weights = _weights(values, sample_weight)
        self.total.assign_add(jnp.sum(jnp.where(weights == 0, 0, values * weights)), read_value=False)

    def result(self) -> Any:
        """The sum so far."""
        return self.total.read_value()


@final
class Accuracy(_WeightedMean):
    """How often predictions equal labels.

    >>> accuracy = rx.Accuracy()
    >>> accuracy.update_state(jnp.array([1, 2, 3]), jnp.array([1, 0, 3]))
    >>> float(accuracy.result())
    0.6666666865348816
    """

    def __init__(self, name: str = "accuracy") -> None:
        """Make it in the strategy's scope."""
        super().__init__(name)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Compare labels with predictions, entry by entry."""
        predictions = jnp.asarray(y_pred)
        self._add(matched(y_true, predictions, "y_true") == predictions, sample_weight)


@final
class SparseCategoricalAccuracy(_WeightedMean):
    """How often the highest score is that of the label.

    >>> accuracy = rx.SparseCategoricalAccuracy()
    >>> accuracy.update_state(jnp.array([2, 0]), jnp.array([[0.1, 0.2, 0.7], [0.3, 0.6, 0.1]]))
    >>> accuracy.result()
    Array(0.5, dtype=float32)
    """

    def __init__(self, name: str = "sparse_categorical_accuracy") -> None:
        """Make it in the strategy's scope."""
        super().__init__(name)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Compare labels with the scores of all classes, which are on the last axis of `y_pred`."""
        best = jnp.argmax(jnp.asarray(y_pred), axis=-1)
        self._add(matched(y_true, best, "y_true") == best, sample_weight)


@final
class MeanSquaredError(_WeightedMean):
    """The mean of squared differences.

    >>> error = rx.MeanSquaredError()
    >>> error.update_state(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    >>> error.result()
    Array(2., dtype=float32)
    """

    def __init__(self, name: str = "mean_squared_error") -> None:
        """Make it in the strategy's scope."""
        super().__init__(name)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Compare true values with predictions, entry by entry."""
        predictions = jnp.asarray(y_pred)
        self._add((predictions - matched(y_true, predictions, "y_true")) ** 2, sample_weight)
