"""`get_loss_reduction`: how v1 optimizers combine the replicas' losses."""

from __future__ import annotations

from replicax.types import ReduceOp

__all__ = ["get_loss_reduction"]


def get_loss_reduction() -> ReduceOp:
    """SUM: gradients are summed over the replicas, so divide the loss by the global batch size.

    >>> from replicax.compat import v1
    >>> v1.get_loss_reduction()
    <ReduceOp.SUM: 'SUM'>
    """
    return ReduceOp.SUM
