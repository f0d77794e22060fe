"""`fit` and `evaluate` on parameter servers: Keras' own loop, with its steps scheduled on workers.

Keras calls a function for each step and, before it reads variables, `jax_state_sync`. Here the function
schedules the step on a worker, and `jax_state_sync` waits for all scheduled steps.

The input is a function that creates a dataset, which each worker calls, or anything else that Keras
accepts, whose batches this process reads and sends.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, final

import jax
import keras
import numpy as np

from replicax.errors import ContextError, InputError
from replicax.execution import function
from replicax.input import DistributedDataset
from replicax.integrations.keras import _private
from replicax.integrations.keras._data_steps import call_model, update_metrics
from replicax.integrations.keras._variable import DistributedVariable
from replicax.parameter_server import ClusterCoordinator, KeptFunction, ParameterServerStrategy
from replicax.training import value_and_grad
from replicax.values import DistributedValues, map_leaves

__all__ = ["FunctionAdapter", "ServerRun", "on_servers", "scheduling", "while_scheduling"]

scheduling: ContextVar[ServerRun | None] = ContextVar("replicax_keras_scheduling", default=None)
"""The current call of `fit` or `evaluate`, if its steps run on workers."""


def on_servers(
    model: Any, strategy: ParameterServerStrategy, method: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Call `fit` or `evaluate` of a model whose variables are on parameter servers."""
    if method.__name__ not in ("fit", "evaluate"):
        raise ContextError(
            f"`{method.__name__}` of the Keras model {model.name!r}, whose variables are on parameter "
            "servers, would run in the coordinator. Use `fit` and `evaluate`, or schedule your own step: "
            "`rx.ClusterCoordinator(strategy).schedule(step, args=(...))`."
        )
    run = ServerRun(model, strategy)

    def in_run() -> Any:
        scheduling.set(run)
        with strategy.scope():
            return method(model, *args, **kwargs)

    return contextvars.copy_context().run(in_run)


@final
class ServerRun:
    """A call of `fit` or `evaluate` whose steps run on workers."""

    def __init__(self, model: Any, strategy: ParameterServerStrategy) -> None:
        _check_steps(model)
        self.model, self.strategy = model, strategy
        self.coordinator = ClusterCoordinator(strategy)
        self._steps: dict[str, KeptFunction] = {}

    def dataset_function(self, x: Any) -> Callable[..., Any] | None:
        """The function that creates each worker's dataset, if `x` is one or comes from one."""
        if isinstance(x, DistributedDataset):
            return self.strategy.dataset_function_of(x)
        return x if callable(x) else None

    def function(self, kind: str) -> Callable[..., Any]:
        """What Keras calls as `train_function` or `test_function`."""

        def schedule(state: Any, iterator: Iterator[Any]) -> tuple[dict[str, Any], Any]:
            batches = [next(iterator), *itertools.islice(iterator, self.model.steps_per_execution - 1)]
            for data in batches:
                self.coordinator.schedule(self._step(kind), args=(_to_send(data),))
            return {}, state

        return schedule

    def _step(self, kind: str) -> KeptFunction:
        if kind not in self._steps:
            _check_optimizer(self.model)
            compiled = self.model.jit_compile and not self.model.run_eagerly
            self._steps[kind] = KeptFunction(_make_step(self.model, self.strategy, kind, compiled))
        return self._steps[kind]


def while_scheduling(method: Callable[..., Any]) -> Callable[..., Any]:
    """Replace methods that Keras' loop calls while steps run on workers."""
    instead = {
        "make_train_function": _make_train_function,
        "make_test_function": _make_test_function,
        "_get_jax_state": _no_state,
        "jax_state_sync": lambda run: run.coordinator.join(),
        "_get_metrics_result_or_logs": lambda run, logs: run.model.get_metrics_result(),
    }[method.__name__]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = scheduling.get()
        if run is None or run.model is not self:
            return method(self, *args, **kwargs)
        return instead(run, *args, **kwargs)

    return call


def _no_state(run: ServerRun, *, purge_model_variables: bool = False, **kinds: bool) -> Any:
    return tuple([] for kind in kinds.values() if kind)


def _make_train_function(run: ServerRun, force: bool = False) -> None:
    if run.model.train_function is None or force:
        run.model.train_function = run.function("train")


def _make_test_function(run: ServerRun, force: bool = False) -> None:
    if run.model.test_function is None or force:
        run.model.test_function = run.function("test")


# The steps.


def _make_step(
    model: Any, strategy: ParameterServerStrategy, kind: str, compiled: bool
) -> Callable[[Any], None]:
    """The step that a worker runs on a batch, or on the next batch of its iterator."""
    in_replica = _train if kind == "train" else _test

    def step(batch: Any) -> None:
        strategy.run(functools.partial(in_replica, model), args=(batch,))

    run: Any = function(step) if compiled else step

    def train_or_test(data: Any) -> None:
        if isinstance(data, _Endless):
            run(data.next_batch())
        else:
            run(strategy.distribute_batch(data))

    return train_or_test


def _train(model: Any, batch: Any) -> None:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    variables = model.trainable_variables

    def loss_fn() -> tuple[Any, Any]:
        predicted = call_model(model, x, training=True)
        return model._compute_loss(x, y, predicted, sample_weight, training=True), predicted

    own = [variable.replicax_variable for variable in variables]
    (loss, predicted), gradients = value_and_grad(loss_fn, own, has_aux=True)()
    model.optimizer.apply(gradients, variables)
    update_metrics(model, loss, x, y, predicted, sample_weight)


def _test(model: Any, batch: Any) -> None:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    predicted = call_model(model, x, training=False)
    loss = model._compute_loss(x, y, predicted, sample_weight, training=False)
    update_metrics(model, loss, x, y, predicted, sample_weight)


def _check_steps(model: Any) -> None:
    for name in ("train_step", "test_step"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise ContextError(
                f"The Keras model {model.name!r} has its own `{name}`, which takes the values of all "
                "variables and returns new ones, but they are on parameter servers. Override "
                "`compute_loss` or `compute_metrics` instead, or schedule your own step: "
                "`rx.ClusterCoordinator(strategy).schedule(step, args=(...))`."
            )


def _check_optimizer(model: Any) -> None:
    outside = [v.path for v in _variables_of(model) if not isinstance(v, DistributedVariable)]
    if outside:
        raise ContextError(
            f"The variables {outside} of the Keras model {model.name!r} were created outside of the "
            "strategy's scope, so they are not on the parameter servers. Create the model, its "
            "optimizer and its metrics inside `with strategy.scope():`."
        )


def _variables_of(model: Any) -> list[Any]:
    optimizer = model.optimizer
    return [*model.variables, *model.metrics_variables, *(optimizer.variables if optimizer else ())]


# The input.


@final
class _Endless:
    """A worker's iterator over its dataset."""

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)

    def next_batch(self) -> Any:
        """The next batch. The end of the data is an error, because other workers may have more."""
        try:
            return next(self._iterator)
        except StopIteration:
            raise InputError(
                "The dataset of a worker ended before all epochs had `steps_per_epoch` steps. Return an "
                "infinite one from the dataset function: `dataset.repeat()`."
            ) from None


def _make_iterator(strategy: ParameterServerStrategy, dataset_fn: Callable[..., Any]) -> _Endless:
    """In a worker."""
    if _takes_context(dataset_fn):
        return _Endless(strategy.distribute_datasets_from_function(dataset_fn))
    dataset = dataset_fn()
    distributed = isinstance(dataset, DistributedDataset)
    return _Endless(dataset if distributed else strategy.distribute_dataset(dataset))


def _takes_context(dataset_fn: Callable[..., Any]) -> bool:
    parameters = inspect.signature(dataset_fn).parameters.values()
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in places for p in parameters) == 1


def _to_send(data: Any) -> Any:
    return jax.tree.map(np.asarray, data) if isinstance(data, tuple | list | dict) else data


@final
class FunctionAdapter(_private.DataAdapter):
    """Represents the workers' own datasets to Keras: each step takes the next batch of its worker.

    Args:
        run: the run.
        dataset_fn: creates the dataset in each worker.
        steps: the number of steps per epoch, which must be known.
    """

    def __init__(self, run: ServerRun, dataset_fn: Callable[..., Any], steps: int | None) -> None:
        if steps is None:
            raise InputError(
                "With a function that creates each worker's dataset, the length of an epoch is unknown. "
                "Pass `steps_per_epoch` to `fit`, `validation_steps` if the validation data is a function, "
                "too, and `steps` to `evaluate`."
            )
        self._run, self._dataset_fn = run, dataset_fn
        self._iterator: Any = None

    @property
    def num_batches(self) -> None:
        """Unknown, like the other sizes."""

    @property
    def batch_size(self) -> None: ...

    @property
    def has_partial_batch(self) -> None: ...

    @property
    def partial_batch_size(self) -> None: ...

    def get_jax_iterator(self) -> Iterator[Any]:
        """A placeholder for the worker's iterator, once per step."""
        if self._iterator is None:
            make = self._run.coordinator.create_per_worker_resource
            self._iterator = make(_make_iterator, args=(self._run.strategy, self._dataset_fn))
        while True:
            yield self._iterator

    get_numpy_iterator = get_jax_iterator

    def peek(self) -> Iterator[Any]:
        """The first batch of a worker, in the form of Keras' epoch iterator."""
        arguments = self._run.strategy, self._dataset_fn
        batch = self._run.coordinator.schedule(_first_batch, args=arguments).fetch()
        yield 0, 0, iter([tuple(batch) if isinstance(batch, tuple | list) else (batch,)])


def _first_batch(strategy: ParameterServerStrategy, dataset_fn: Callable[..., Any]) -> Any:
    """In a worker."""
    return map_leaves(_of_first_replica, _make_iterator(strategy, dataset_fn).next_batch())


def _of_first_replica(leaf: Any) -> Any:
    return leaf.values[0] if isinstance(leaf, DistributedValues) else leaf
