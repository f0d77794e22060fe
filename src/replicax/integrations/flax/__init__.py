"""Flax NNX models whose parameters, statistics and random streams are variables of a strategy."""

from replicax.integrations.flax._adopt import adopt, variables
from replicax.integrations.flax._sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm", "adopt", "variables"]
