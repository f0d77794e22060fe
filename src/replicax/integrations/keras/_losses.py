"""Keras' losses in replica functions: an average is divided by the number of replicas too.

So the replicas' losses add up to that of the global batch, as Keras does it under `tf.distribute`, if all
replicas have the same number of examples; `rx.compute_average_loss` is right for any numbers.
"""

from __future__ import annotations

from typing import Any

from replicax.contexts import current

__all__ = ["scale_loss_for_distribution", "unscale_loss_for_distribution"]


def _num_replicas() -> int:
    here = current()
    return 1 if here.replica is None else here.strategy.num_replicas_in_sync


def scale_loss_for_distribution(value: Any) -> Any:
    """An average over this replica's examples, as its part of the average over those of all replicas."""
    num_replicas = _num_replicas()
    return value if num_replicas == 1 else value / num_replicas


def unscale_loss_for_distribution(value: Any) -> Any:
    """What it was before."""
    num_replicas = _num_replicas()
    return value if num_replicas == 1 else value * num_replicas
