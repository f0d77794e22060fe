"""Flax NNX models under strategies: parameters, statistics and random streams become `rx.Variable`s."""

from replicax.integrations.flax._adopt import adopt, variables
from replicax.integrations.flax._sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm", "adopt", "variables"]
