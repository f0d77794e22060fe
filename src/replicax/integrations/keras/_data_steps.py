"""Custom steps in TensorFlow's form: `train_step(self, data)`.

Keras' JAX trainer calls `train_step(self, state, data)`, which takes the values of all variables and
returns new ones. A step that takes only the data reads and writes the variables themselves. We call it in a
`StatelessScope` with the values; what it writes there is the new state.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import keras

from replicax._recording import unrecorded
from replicax.contexts import current
from replicax.errors import ContextError
from replicax.integrations.keras import _private
from replicax.integrations.keras._run import variable_groups
from replicax.training import GradientTape
from replicax.variables import watched_by

__all__ = ["STEPS", "adapting_steps", "call_model", "taking_data", "update_metrics", "watched_in_step"]

STEPS = ("train_step", "test_step", "predict_step")


def adapting_steps(make_function: Callable[..., Any]) -> Callable[..., Any]:
    """Make `Model.make_train_function` and similar methods accept steps that take only the data."""

    @functools.wraps(make_function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in STEPS:
            _adapt(type(self), name)
        return make_function(self, *args, **kwargs)

    return call


def taking_data(step: Callable[..., Any]) -> Callable[..., Any]:
    """Make Keras' own step callable with only the data, as in `super().train_step(data)`."""
    of_data = _OF_DATA[step.__name__]

    @functools.wraps(step)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (step if len(args) + len(kwargs) == 2 else of_data)(self, *args, **kwargs)

    return call


def watched_in_step(variable: Any, value: Any) -> Any:
    """The value read from a variable in a `StatelessScope`; in a data-only step, tapes watch it."""
    scope = _private.global_state.get_global_attribute("stateless_scope")
    return watched_by(current().tapes, variable, value) if isinstance(scope, _State) else value


def _adapt(kind: type, name: str) -> None:
    for base in kind.__mro__[: kind.__mro__.index(keras.Model)]:
        step = vars(base).get(name)
        if inspect.isfunction(step) and _takes_only_data(step):
            setattr(base, name, _with_state(name, step))


def _takes_only_data(step: Callable[..., Any]) -> bool:
    parameters = inspect.signature(step).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len(kinds) == 2 and all(kind in positional for kind in kinds)


def _with_state(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    """A data-only step that Keras can also call with the state."""

    @functools.wraps(step)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) == 1:
            return step(self, *args, **kwargs)
        state, data = args
        return _call_with_state(self, name, functools.partial(step, self), state, data)

    del call.__wrapped__  # `inspect.signature` must not see that of `step`
    return call


def _call_with_state(model: Any, name: str, step: Callable[[Any], Any], state: Any, data: Any) -> Any:
    groups = _groups(model, name)
    scope = _State(groups, state)
    with scope:
        outputs = jax.tree.map(unrecorded, step(data))
    scope.check_written(model, name)
    new = tuple([scope.get_current_value(variable) for variable in group] for group in groups)
    return outputs, (new[1] if name == "predict_step" else new)


def _groups(model: Any, name: str) -> Sequence[Sequence[Any]]:
    trainable, non_trainable, of_optimizer, of_metrics = variable_groups(model)
    return {
        "train_step": (trainable, non_trainable, of_optimizer, of_metrics),
        "test_step": (trainable, non_trainable, of_metrics),
        "predict_step": (trainable, non_trainable),
    }[name]


@final
class _State(keras.StatelessScope):
    """The values of all variables in a step."""

    def __init__(self, groups: Sequence[Sequence[Any]], state: Any) -> None:
        pairs = [
            pair
            for group, values in zip(groups, state, strict=True)
            for pair in zip(group, values, strict=True)
        ]
        super().__init__(pairs, collect_losses=True)
        self._known = {id(variable) for variable, _ in pairs}
        self._unknown: list[str] = []

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Write a variable."""
        variable, value = update
        if id(variable) not in self._known:
            self._unknown.append(variable.path)
        super().add_update((variable, unrecorded(value)))

    def check_written(self, model: Any, name: str) -> None:
        """Raise if the step wrote variables that Keras does not keep."""
        if self._unknown:
            raise ContextError(
                f"`{name}` of the Keras model {model.name!r} writes {sorted(set(self._unknown))}, but "
                "Keras keeps only the variables of the model's layers, of `model.optimizer` and of "
                "`model.metrics`. Make a metric an attribute of the model. With other optimizers, write "
                "the loop yourself: a `tf.function` that calls `strategy.run`."
            )


# Keras' own steps, in the same form.


def _train(model: Any, data: Any) -> Any:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with GradientTape() as tape:
        predicted = call_model(model, x, training=True)
        loss = model._compute_loss(x, y, predicted, sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)
    return update_metrics(model, loss, x, y, predicted, sample_weight)


def _test(model: Any, data: Any) -> Any:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    predicted = call_model(model, x, training=False)
    loss = model._compute_loss(x, y, predicted, sample_weight, training=False)
    return update_metrics(model, loss, x, y, predicted, sample_weight)


def _predict(model: Any, data: Any) -> Any:
    return call_model(model, keras.utils.unpack_x_y_sample_weight(data)[0], training=False)


_OF_DATA: dict[str, Callable[..., Any]] = dict(zip(STEPS, (_train, _test, _predict), strict=True))


def call_model(model: Any, x: Any, *, training: bool) -> Any:
    """Call a model, which may or may not take `training`."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def update_metrics(model: Any, loss: Any, x: Any, y: Any, predicted: Any, sample_weight: Any) -> Any:
    """Update the metrics of a model, including the loss metric; returns their results."""
    num_rows = next(leaf for leaf in jax.tree.leaves(x) if leaf is not None).shape[0]
    model._loss_tracker.update_state(
        _private.loss.unscale_loss_for_distribution(loss), sample_weight=num_rows
    )
    return model.compute_metrics(x, y, predicted, sample_weight)
