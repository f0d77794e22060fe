"""Metrics: running statistics that replicas update without communication; reading combines them."""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.contexts import current, has_strategy, in_cross_replica_context
from replicax.errors import CollectiveError, VariableError
from replicax.training._losses import matched
from replicax.training._padding import current_examples, rows_that_count
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.values import FIND, is_array
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
    """The base class of metrics: define `update_state` and `result` with variables made by `add_weight`.

    Create metrics in the strategy's scope, update them in replica functions, and read them outside, where
    the parts of all replicas are combined.

    If `update_state` has a keyword argument `example_mask`, it receives the mask of a padded batch
    (`InputOptions(partial_batch="pad")`): one boolean per row, False for padding. It is None if every row
    is an example, so you can always pass it as `where=` to `jnp.sum` and similar functions. In a replica
    with a padded batch, a metric without that argument raises an error, because it would count the padding.

    >>> class Large(rx.Metric):
    ...     def __init__(self):
    ...         super().__init__("large")
    ...         self.count = self.add_weight("count")
    ...     def update_state(self, values, *, example_mask=None):
    ...         self.count.assign_add(jnp.sum(values > 10, where=example_mask).astype(jnp.float32))
    ...     def result(self):
    ...         return self.count.read_value()
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     metric = Large()
    >>> dataset = rx.from_arrays(np.array([5.0, 11.0, 12.0, 13.0, 14.0], np.float32)).batch(4)
    >>> for x in strategy.distribute_dataset(dataset, rx.InputOptions(partial_batch="pad")):
    ...     strategy.run(metric.update_state, args=(x,))
    >>> metric.result()
    Array(4., dtype=float32)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make `update_state` receive the mask of a padded batch."""
        super().__init_subclass__(**kwargs)
        if "update_state" in cls.__dict__:
            cls.update_state = _receiving_mask(cls.__dict__["update_state"])

    def __init__(self, name: str) -> None:
        """Call this first, with the metric's name."""
        self.name = name
        self.variables: list[Variable] = []

    def add_weight(self, name: str, shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> Variable:
        """Create a variable that starts at zero; each replica has a part, and reading adds the parts.

        Args:
            name: its name, appended to the metric's name.
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

    _takes_rows = False
    """Whether arrays passed to `update_state` must have one row per example."""

    def _find_mask(self, arguments: Any) -> Any:
        """The mask of the padded batch that the arguments of `update_state` were computed from."""
        examples = current_examples()
        if examples is None:
            return None
        arrays = [leaf for leaf in jax.tree.leaves(arguments) if is_array(leaf) and np.ndim(leaf)]
        if not self._takes_rows and (not arrays or examples.num_batches == 1):
            return examples.only_mask(current().rows)
        mask = rows_that_count(arrays, FIND, "values of a metric") if arrays else None
        return None if mask is None else mask.now

    @abc.abstractmethod
    def update_state(self, *args: Any, **kwargs: Any) -> Any:
        """Add new values to the metric."""

    @abc.abstractmethod
    def result(self) -> jax.Array:
        """The metric so far; in a replica function, of the replica's own part."""

    def reset_state(self) -> None:
        """Set all variables to zero, outside of replica functions."""
        for variable in self.variables:
            variable.assign(jnp.zeros(variable.shape, variable.dtype), read_value=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def checkpoint_items(self) -> dict[str, Any]:
        """What a checkpoint saves: its variables."""
        items: dict[str, Any] = {}
        for variable in self.variables:
            name = variable.name.removesuffix(":0").replace("/", ".")
            items[f"{name}_{len(items)}" if name in items else name] = variable
        return items


def _receiving_mask(update_state: Callable[..., Any]) -> Callable[..., Any]:
    """`update_state` with the current `example_mask`, unless it is called with one."""
    parameters = inspect.signature(update_state).parameters.values()
    takes_mask = any(p.name == "example_mask" for p in parameters)
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters)

    @functools.wraps(update_state)
    def update_with_mask(self: Metric, *args: Any, **kwargs: Any) -> Any:
        if "example_mask" not in kwargs:
            mask = self._find_mask((args, kwargs))
            if takes_mask or (passes_on and mask is not None):
                kwargs["example_mask"] = mask
            elif mask is not None:
                raise CollectiveError(
                    f"{type(self).__name__}.update_state was called in a replica with a padded batch, "
                    "but does not take its mask, so it would count the padding. Give it a keyword "
                    "argument `example_mask=None`, and ignore the rows where it is False; see "
                    "rx.Metric."
                )
        try:
            return update_state(self, *args, **kwargs)
        except VariableError as error:
            outside = in_cross_replica_context() or not has_strategy()
            if outside and any(variable.layout.differs for variable in self.variables):
                error.add_note(
                    "A metric is updated in the replicas: "
                    f"`strategy.run({self.name}.update_state, args=(...))`."
                )
            raise

    return update_with_mask


def _weights(values: Any, sample_weight: Any, example_mask: Any) -> Any:
    """The weight of each value: `sample_weight`, and zero for padding."""
    weights = jnp.ones(values.shape, jnp.float32)
    if sample_weight is not None:
        weights = weights * matched(sample_weight, values, "sample_weight").astype(jnp.float32)
    if example_mask is None or not values.ndim:
        return weights
    if example_mask.shape[0] != values.shape[0]:
        raise CollectiveError(
            f"A metric got {values.shape[0]} values, but an example_mask of {example_mask.shape[0]} rows. "
            f"Give the values one row for each example: `values.reshape({example_mask.shape[0]}, -1)`."
        )
    mask = example_mask.reshape(example_mask.shape + (1,) * (values.ndim - 1))
    return jnp.where(mask, weights, 0)


class _WeightedMean(Metric):
    """Accumulates the weighted sum of values and their weights."""

    _takes_rows = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.total = self.add_weight("total")
        self.count = self.add_weight("count")

    def _add(self, values: Any, sample_weight: Any, example_mask: Any) -> None:
        values = jnp.asarray(values, jnp.float32)
        weights = _weights(values, sample_weight, example_mask)
        # 0 * NaN is NaN, so select instead of multiplying.
        self.total.assign_add(jnp.sum(jnp.where(weights == 0, 0, values * weights)), read_value=False)
        self.count.assign_add(jnp.sum(weights), read_value=False)

    @final
    def result(self) -> jax.Array:
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
        """Call this in the strategy's scope."""
        super().__init__(name)

    def update_state(self, values: Any, sample_weight: Any = None, *, example_mask: Any = None) -> None:
        """Add `values`, an array or a number.

        Args:
            values: the values; in a padded batch, one row for each example.
            sample_weight: weights of the values or of their rows.
            example_mask: the rows to count; by default those of the padded batch that are not padding.
                Pass None for values that are not rows of that batch.
        """
        self._add(values, sample_weight, example_mask)


@final
class Sum(Metric):
    """The sum of values.

    >>> total = rx.Sum()
    >>> total.update_state(jnp.array([1.0, 2.0]))
    >>> total.update_state(3.0)
    >>> total.result()
    Array(6., dtype=float32)
    """

    _takes_rows = True

    def __init__(self, name: str = "sum") -> None:
        """Call this in the strategy's scope."""
        super().__init__(name)
        self.total = self.add_weight("total")

    def update_state(self, values: Any, sample_weight: Any = None, *, example_mask: Any = None) -> None:
        """Add `values`, an array or a number.

        Args:
            values: the values; in a padded batch, one row for each example.
            sample_weight: weights of the values or of their rows.
            example_mask: the rows to count; by default those of the padded batch that are not padding.
                Pass None for values that are not rows of that batch.
        """
        values = jnp.asarray(values, jnp.float32)
        weights = _weights(values, sample_weight, example_mask)
        self.total.assign_add(jnp.sum(jnp.where(weights == 0, 0, values * weights)), read_value=False)

    def result(self) -> jax.Array:
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
        """Call this in the strategy's scope."""
        super().__init__(name)

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, *, example_mask: Any = None
    ) -> None:
        """Compare labels with predictions, entry by entry."""
        predictions = jnp.asarray(y_pred)
        self._add(matched(y_true, predictions, "y_true") == predictions, sample_weight, example_mask)


@final
class SparseCategoricalAccuracy(_WeightedMean):
    """How often the label has the highest score.

    >>> accuracy = rx.SparseCategoricalAccuracy()
    >>> accuracy.update_state(jnp.array([2, 0]), jnp.array([[0.1, 0.2, 0.7], [0.3, 0.6, 0.1]]))
    >>> accuracy.result()
    Array(0.5, dtype=float32)
    """

    def __init__(self, name: str = "sparse_categorical_accuracy") -> None:
        """Call this in the strategy's scope."""
        super().__init__(name)

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, *, example_mask: Any = None
    ) -> None:
        """Compare labels with the scores of all classes, which are on the last axis of `y_pred`."""
        labels, scores = jnp.asarray(y_true), jnp.asarray(y_pred)
        if labels.ndim > scores.ndim or (labels.ndim == scores.ndim and labels.shape[-1] > 1):
            raise CollectiveError(
                "SparseCategoricalAccuracy.update_state(y_true, y_pred) got y_true of shape "
                f"{labels.shape} and y_pred of shape {scores.shape}. {_label_advice(labels, scores)}"
            )
        best = jnp.argmax(scores, axis=-1)
        self._add(matched(labels, best, "y_true") == best, sample_weight, example_mask)


def _label_advice(labels: Any, scores: Any) -> str:
    if labels.ndim > scores.ndim or jnp.issubdtype(scores.dtype, jnp.integer):
        return (
            "The arguments seem to be swapped: pass the labels first and the scores of all classes second."
        )
    return (
        "Labels are class indices, without a class axis. For one-hot labels pass "
        "`jnp.argmax(y_true, axis=-1)`."
    )


@final
class MeanSquaredError(_WeightedMean):
    """The mean of squared differences.

    >>> error = rx.MeanSquaredError()
    >>> error.update_state(jnp.array([1.0, 2.0]), jnp.array([1.0, 4.0]))
    >>> error.result()
    Array(2., dtype=float32)
    """

    def __init__(self, name: str = "mean_squared_error") -> None:
        """Call this in the strategy's scope."""
        super().__init__(name)

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, *, example_mask: Any = None
    ) -> None:
        """Compare true values with predictions, entry by entry."""
        predictions = jnp.asarray(y_pred)
        self._add((predictions - matched(y_true, predictions, "y_true")) ** 2, sample_weight, example_mask)
