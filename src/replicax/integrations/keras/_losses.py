"""Keras losses in replica functions: an average is also divided by the number of replicas.

The replicas' losses then add up to the loss of the global batch, as in Keras under `tf.distribute`, if all
replicas have the same number of examples. `rx.compute_average_loss` is exact for any numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from replicax.contexts import current

__all__ = ["scale_loss_for_distribution", "scaling_additional_losses", "unscale_loss_for_distribution"]


def _num_replicas() -> int:
    here = current()
    return 1 if here.replica is None else here.strategy.num_replicas_in_sync


def scale_loss_for_distribution(value: Any) -> Any:
    """Turn a replica's average into its share of the average over all replicas."""
    num_replicas = _num_replicas()
    return value if num_replicas == 1 else value / num_replicas


def unscale_loss_for_distribution(value: Any) -> Any:
    """Undo `scale_loss_for_distribution`."""
    num_replicas = _num_replicas()
    return value if num_replicas == 1 else value * num_replicas


def scaling_additional_losses(aggregate: Callable[..., Any]) -> Callable[..., Any]:
    """Make a model count the losses of its layers, such as regularization, once for all replicas."""

    @functools.wraps(aggregate)
    def call(self: Any, loss: Any) -> Any:
        return scale_loss_for_distribution(aggregate(self, loss))

    return call
