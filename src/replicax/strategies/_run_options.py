"""The options of `strategy.run`, and the argument of `distribute_values_from_function`'s functions."""

from __future__ import annotations

import dataclasses
from typing import Any, final

__all__ = ["RunOptions", "ValueContext"]


@final
@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How `strategy.run` treats shapes.

    Args:
        experimental_enable_dynamic_batch_size: whether to allow per-replica arguments whose shapes differ
            between replicas, rather than raise an error.
        experimental_bucketizing_dynamic_shape: not supported; must be False.
        experimental_xla_options: not supported; must be None. Set XLA options for the process in the
            environment variable XLA_FLAGS.

    >>> rx.RunOptions().experimental_enable_dynamic_batch_size
    True
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None

    def __post_init__(self) -> None:
        """Raise for options that are not supported."""
        if self.experimental_bucketizing_dynamic_shape:
            raise ValueError(
                "RunOptions(experimental_bucketizing_dynamic_shape=True) is not supported: arguments are "
                "never padded implicitly, and each shape compiles another program. Pad the input to one "
                "shape, for example with InputOptions(partial_batch='pad')."
            )
        if self.experimental_xla_options is not None:
            raise ValueError(
                "RunOptions(experimental_xla_options=...) is not supported: XLA options apply to the "
                "whole process. Set them in the environment variable XLA_FLAGS before starting Python."
            )


@final
@dataclasses.dataclass(frozen=True)
class ValueContext:
    """The argument of the function passed to `distribute_values_from_function`.

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
