"""`ClusterOptions`: the timeouts of a cluster."""

from __future__ import annotations

import dataclasses
from typing import final

__all__ = ["ClusterOptions"]


@final
@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """How long the workers of a cluster wait for each other; an argument of the strategy.

    Args:
        start_timeout_seconds: how long to wait until all workers have joined.
        stuck_timeout_seconds: how long the others may wait in a collective that a worker has not reached.
            Compiling, saving a checkpoint, and computing while no other worker waits do not count.
        cleanup_timeout_seconds: how long the `except` and `finally` blocks of a worker may take after
            another worker has failed. Then the process is terminated.
        shutdown_timeout_seconds: how long the first worker, whose host runs the coordinator, waits at exit
            for the others to exit.
        heartbeat_timeout_seconds: how long JAX's coordination service may be unreachable before JAX
            terminates the process. The watchdog detects all other failures.

    >>> rx.cluster.ClusterOptions(stuck_timeout_seconds=600).stuck_timeout_seconds
    600
    """

    start_timeout_seconds: float = 300.0
    stuck_timeout_seconds: float = 60.0
    cleanup_timeout_seconds: float = 30.0
    shutdown_timeout_seconds: float = 300.0
    heartbeat_timeout_seconds: float = 100.0

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise TypeError(f"{name} must be a number of seconds, got {seconds!r}.")
            if not seconds > 0:
                raise ValueError(f"{name} must be positive, got {seconds!r}.")
