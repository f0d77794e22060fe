"""Options of one `strategy.run`, and the context that `distribute_values_from_function` gives."""

from __future__ import annotations

import dataclasses
from typing import Any, final

__all__ = ["RunOptions", "ValueContext"]


@final
@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How `strategy.run` should treat shapes.

    Args:
        experimental_enable_dynamic_batch_size: allow per-replica arguments whose shapes differ between
            replicas. False makes them an error.
        experimental_bucketizing_dynamic_shape: not offered; only False is accepted.
        experimental_xla_options: not offered; only None is accepted. Set XLA options for the process in
            the environment variable XLA_FLAGS.

    >>> rx.RunOptions().experimental_enable_dynamic_batch_size
    True
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None

    def __post_init__(self) -> None:
        """Refuse what can't be honoured."""
        if self.experimental_bucketizing_dynamic_shape:
            raise ValueError(
                "RunOptions(experimental_bucketizing_dynamic_shape=True) is not supported: shapes are "
                "never padded behind your back. Different shapes compile different programs; pad the "
                "input yourself to have one."
            )
        if self.experimental_xla_options is not None:
            raise ValueError(
                "RunOptions(experimental_xla_options=...) is not supported: XLA options hold for the "
                "whole process. Set them in the environment variable XLA_FLAGS before starting Python."
            )


@final
@dataclasses.dataclass(frozen=True)
class ValueContext:
    """What a function given to `distribute_values_from_function` is told.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> strategy.distribute_values_from_function(
    ...     lambda ctx: f"{ctx.replica_id_in_sync_group} of {ctx.num_replicas_in_sync}")
    PerReplica:{
      0: '0 of 2',
      1: '1 of 2'
    }
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1
