"""`run`: trains with workers on Ray, and restarts them if one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from replicax.errors import ClusterError, RunFailedError
from replicax.integrations.ray._failure import Failure
from replicax.integrations.ray._group import place_group
from replicax.integrations.ray._library import ray

__all__ = ["run"]

T = TypeVar("T")

_logger = logging.getLogger("replicax")


def run(
    train_fn: Callable[[], T],
    num_workers: int,
    resources_per_worker: Mapping[str, float] | None = None,
    max_failures: int = 0,
    min_workers: int | None = None,
    *,
    placement_timeout_seconds: float = 60.0,
) -> list[T]:
    """Call `train_fn` in `num_workers` processes on a Ray cluster, which form one Replicax cluster.

    TF_CONFIG is set in each, so `rx.MultiWorkerMirroredStrategy()` joins the others. If a worker fails, all
    of them are stopped and restarted in new processes, up to `max_failures` times; `train_fn` should
    continue from its last checkpoint. REPLICAX_RESTART_COUNT has the number of restarts.

    Args:
        train_fn: what every worker calls, without arguments; use `functools.partial` to pass some.
        num_workers: the number of workers.
        resources_per_worker: what Ray reserves for each, such as `{"CPU": 4, "GPU": 1}`; None means one
            CPU.
        max_failures: how often to restart after a failure.
        min_workers: if Ray can't place all workers, for example because a machine is gone, train with as
            many as it can, but with no fewer than this. None requires all of them.
        placement_timeout_seconds: how long to wait for the resources of all workers.

    Returns:
        What `train_fn` returned in each worker, by rank, with NumPy arrays in place of JAX arrays.

    Raises:
        ClusterError: the number of workers or failures is invalid.
        ClusterTimeoutError: Ray could not place the workers.
        RunFailedError: a worker failed. The message has its rank and traceback; `__cause__` is its
            exception.

    The example needs a Ray cluster, or starts one on this machine::

        def train():
            strategy = rx.MultiWorkerMirroredStrategy()
            ...
            return float(loss)

        losses = run(train, num_workers=2, max_failures=1)
    """
    least = num_workers if min_workers is None else min_workers
    _check(num_workers, least, max_failures)
    resources = {"CPU": 1.0} if resources_per_worker is None else dict(resources_per_worker)
    if not ray.is_initialized():
        ray.init()
    restart = 0
    while True:
        group = place_group(num_workers, least, resources, placement_timeout_seconds)
        try:
            outcome = group.run(train_fn, restart)
        finally:
            group.close()
        if not isinstance(outcome, Failure):
            return outcome
        message = _message(outcome, len(group), restart + 1, max_failures)
        if restart == max_failures:
            raise RunFailedError(message) from outcome.cause
        _logger.warning("%s\nRestarting all workers.", message)
        restart += 1


def _check(num_workers: int, min_workers: int, max_failures: int) -> None:
    if not 1 <= min_workers <= num_workers:
        raise ClusterError(
            f"ray.run got num_workers={num_workers} and min_workers={min_workers}. Pass 1 <= "
            "min_workers <= num_workers."
        )
    if max_failures < 0:
        raise ClusterError(f"ray.run got max_failures={max_failures}. Pass 0 or more.")


def _message(failure: Failure, num_workers: int, number: int, max_failures: int) -> str:
    which = f"failure {number}, with max_failures={max_failures}"
    return f"Rank {failure.rank} of {num_workers} failed ({which}): {failure}"
