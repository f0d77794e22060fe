"""Patches Keras' classes for strategies.

Keras has no extension point for creating variables or for what happens around `fit`, so we replace a few
methods of its classes. Without a strategy and without a Replicax dataset, each replacement does what the
original did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from replicax.contexts import has_strategy
from replicax.integrations.keras import _private
from replicax.integrations.keras._adapters import building_for_variables, taking_variables
from replicax.integrations.keras._call_state import getting_call_state, losses_of_layers, setting_call_state
from replicax.integrations.keras._callbacks import backing_up_once, deciding_alike, saving_once
from replicax.integrations.keras._checkpoint_paths import (
    adding_in_place,
    checkpoint_items,
    checkpoint_items_by_number,
    may_grow,
    restoring_after,
)
from replicax.integrations.keras._data_steps import STEPS, adapting_steps, taking_data
from replicax.integrations.keras._datasets import adapting_datasets, building_from_first_batch
from replicax.integrations.keras._embeddings import looking_up_rows
from replicax.integrations.keras._executions import running_together
from replicax.integrations.keras._layers import (
    accepting_synchronized,
    moments_of_all_replicas,
    normalizing_some_rows,
)
from replicax.integrations.keras._layout import StrategyLayout
from replicax.integrations.keras._losses import (
    scale_loss_for_distribution,
    scaling_additional_losses,
    unscale_loss_for_distribution,
)
from replicax.integrations.keras._models import (
    building_in_scope,
    in_scope,
    moving_what_was_built,
    on_all_devices,
    remember,
)
from replicax.integrations.keras._optimizers import adding_mirrored_slots, reducing_first
from replicax.integrations.keras._pickling import dumps
from replicax.integrations.keras._reading import accepting_copy, adopted_when_read, writing_outside_of_steps
from replicax.integrations.keras._run import placing_state, running, syncing_state, taking_state
from replicax.integrations.keras._scheduling import while_scheduling
from replicax.integrations.keras._server_optimizers import creating_state, creating_state_of
from replicax.integrations.keras._tensorboard import summarizing_without_tensorflow, without_graph
from replicax.integrations.keras._unscoped import adopted_variable, begins_adopted
from replicax.integrations.keras._variable import DistributedVariable
from replicax.parameter_server import pickle_with

__all__ = ["install"]

_RUNS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
_STEPS = (
    "make_train_function",
    "make_test_function",
    "_get_jax_state",
    "jax_state_sync",
    "_get_metrics_result_or_logs",
)


def install() -> None:
    """Replace the methods; call this only once.

    A method that is replaced twice runs the later replacement first, so models come before checkpoints.
    """
    _replace_in_variables()
    _replace_in_models()
    _replace_in_layers()
    _replace_in_optimizers()
    _replace_for_checkpoints()
    _replace_in_callbacks()
    _replace_functions()
    pickle_with(dumps)


def _replace_in_variables() -> None:
    keras.Variable.__new__ = staticmethod(_new_variable)
    _replace(keras.Variable, "_direct_assign", writing_outside_of_steps)
    _replace(keras.Variable, "_maybe_autocast", adopted_when_read)
    _replace(keras.Variable, "__array__", accepting_copy)
    setattr(keras.Variable, "replicax_variable", property(adopted_variable))  # noqa: B010


def _replace_in_models() -> None:
    keras.Model.__new__ = staticmethod(_remembered(keras.Model.__new__))
    _replace(keras.Model, "compile", in_scope)
    for kind in (keras.Model, keras.Sequential):
        _replace(kind, "build", building_in_scope)
    _replace(keras.Model, "_maybe_build", building_in_scope)
    for name in _RUNS:
        _replace(keras.Model, name, on_all_devices)
    _replace(keras.Model, "_symbolic_build", moving_what_was_built)
    _replace(keras.Model, "_symbolic_build", building_from_first_batch)
    _replace(keras.Model, "_get_jax_state", taking_state)
    _replace(keras.Model, "_get_state_sharding_spec", placing_state)
    _replace(keras.Model, "_make_function", running_together)
    _replace(keras.Model, "jax_state_sync", syncing_state)
    for name in _STEPS:
        _replace(keras.Model, name, while_scheduling)
    for name in STEPS:
        _replace(keras.Model, name, taking_data)
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        _replace(keras.Model, name, adapting_steps)
    _replace(keras.Model, "_aggregate_additional_loss", scaling_additional_losses)


def _replace_in_layers() -> None:
    _replace(keras.layers.Embedding, "call", looking_up_rows)
    _replace(keras.layers.BatchNormalization, "call", normalizing_some_rows)
    _replace(keras.layers.BatchNormalization, "__init__", accepting_synchronized)
    _replace(keras.layers.BatchNormalization, "_moments", moments_of_all_replicas)
    setattr(keras.Layer, "_losses", losses_of_layers)  # noqa: B010


def _replace_in_optimizers() -> None:
    for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        _replace(optimizer, "apply", reducing_first)
        _replace(optimizer, "apply", taking_variables)
    _replace(keras.optimizers.Optimizer, "build", building_for_variables)
    _replace(keras.optimizers.Optimizer, "add_variable", adding_mirrored_slots)
    _replace(keras.optimizers.Optimizer, "__init__", creating_state)
    _replace(keras.optimizers.Optimizer, "add_variable_from_reference", creating_state_of)


def _replace_for_checkpoints() -> None:
    for kind in (keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric):
        setattr(kind, "checkpoint_items", _checkpoint_items)  # noqa: B010
        setattr(kind, "checkpoint_items_by_number", checkpoint_items_by_number)  # noqa: B010
        setattr(kind, "checkpoint_may_grow", may_grow)  # noqa: B010
    for kind, add in (
        (keras.Layer, "add_weight"),
        (keras.optimizers.Optimizer, "add_variable"),
        (keras.metrics.Metric, "add_variable"),
    ):
        _replace(kind, add, adding_in_place)
    _replace(keras.Layer, "_maybe_build", restoring_after)
    _replace(keras.Model, "_symbolic_build", restoring_after)


def _replace_in_callbacks() -> None:
    for name in ("_save_model", "on_train_end"):
        _replace(keras.callbacks.BackupAndRestore, name, backing_up_once)
    _replace(keras.callbacks.ModelCheckpoint, "_save_model", saving_once)
    _replace(keras.callbacks.ModelCheckpoint, "_should_save_model", deciding_alike)
    _replace(keras.callbacks.TensorBoard, "summary", summarizing_without_tensorflow)
    _replace(keras.callbacks.TensorBoard, "_write_keras_model_summary", without_graph)


def _replace_functions() -> None:
    """Replace functions of Keras' modules."""
    _private.global_state.get_global_attribute = getting_call_state(
        _private.global_state.get_global_attribute
    )
    _private.global_state.set_global_attribute = setting_call_state(
        _private.global_state.set_global_attribute
    )
    _private.loss.scale_loss_for_distribution = scale_loss_for_distribution
    _private.loss.unscale_loss_for_distribution = unscale_loss_for_distribution
    _private.data_adapters.get_data_adapter = adapting_datasets(_private.data_adapters.get_data_adapter)
    _private.trainer._distribute_data = _placed(_private.trainer._distribute_data)


def _replace(kind: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Wrap a method in the class that defines it: Keras checks whether a model overrides it."""
    owner = next(base for base in kind.__mro__ if name in vars(base))
    setattr(owner, name, wrap(vars(owner)[name]))


def _new_variable(cls: type, *args: Any, **kwargs: Any) -> Any:
    # Copying and unpickling call this without arguments, and set the attributes afterwards.
    distributed = cls is keras.Variable and (args or kwargs) and (has_strategy() or begins_adopted())
    return object.__new__(DistributedVariable if distributed else cls)


def _remembered(new: Callable[..., Any]) -> Callable[..., Any]:
    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        model = new(cls, *args, **kwargs)
        remember(model)
        return model

    return __new__


def _checkpoint_items(self: Any) -> dict[str, Any]:
    """What a checkpoint saves of a layer, an optimizer or a metric: its variables, by path."""
    run = running.get()
    if run is not None:
        run.model.jax_state_sync()  # during `fit` the run has the values; Keras' callbacks do the same
    return checkpoint_items(self)


def _placed(distribute: Callable[..., Any]) -> Callable[..., Any]:
    def _distribute_data(data: Any, layouts: Any = None) -> Any:
        distribution = keras.distribution.distribution()
        if not isinstance(distribution, StrategyLayout):
            return distribute(data, layouts)
        return keras.tree.map_structure(distribution.place, data)

    return _distribute_data
