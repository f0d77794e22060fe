"""Training: gradients with respect to variables, optimizers, losses, metrics, randomness."""

from replicax.training._gradients import grad, value_and_grad
from replicax.training._loss_scale import DynamicLossScale
from replicax.training._losses import compute_average_loss, compute_weighted_loss, scale_regularization_loss
from replicax.training._metrics import (
    Accuracy,
    Mean,
    MeanSquaredError,
    Metric,
    SparseCategoricalAccuracy,
    Sum,
)
from replicax.training._moving_average import (
    ExponentialMovingAverage,
    create_averages,
    move_averages,
    once_for_all_replicas,
    warmed_up,
)
from replicax.training._optimizer import Optimizer
from replicax.training._precision import MixedPrecision
from replicax.training._pytrees import create_variables, read_values
from replicax.training._random import example_keys
from replicax.training._tape import GradientTape
from replicax.training._transformation import Transformation

__all__ = [
    "Accuracy",
    "DynamicLossScale",
    "ExponentialMovingAverage",
    "GradientTape",
    "Mean",
    "MeanSquaredError",
    "Metric",
    "MixedPrecision",
    "Optimizer",
    "SparseCategoricalAccuracy",
    "Sum",
    "Transformation",
    "compute_average_loss",
    "compute_weighted_loss",
    "create_averages",
    "create_variables",
    "example_keys",
    "grad",
    "move_averages",
    "once_for_all_replicas",
    "read_values",
    "scale_regularization_loss",
    "value_and_grad",
    "warmed_up",
]
