"""Keras' losses in replica functions: an average is also divided by the number of replicas.

The replicas' losses then add up to the loss of the global batch, as with Keras under `tf.distribute`, if
all replicas have equally many examples. `rx.compute_average_loss` is exact for any numbers of examples.
"""

from __future__ import annotations

from typing import Any

from replicax.contexts import current

__all__ = ["scale_loss_for_distribution", "unscale_loss_for_distribution"]


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
