"""A group of connected workers: as many actors as Ray can place, until they are done or one fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, final

from replicax.errors import ClusterTimeoutError
from replicax.integrations.ray._failure import Failure, Raised, choose_cause
from replicax.integrations.ray._library import RayError, placement_groups, ray, scheduling
from replicax.integrations.ray._worker import Worker
from replicax.parameter_server import actor_options

__all__ = ["Group", "place_group"]

_SECONDS_FOR_FEWER = 5.0  # for placing a smaller group, once the previous workers' resources are free
_SECONDS_TO_LEAVE = 10.0
_SECONDS_FOR_CAUSE = 3.0  # between the death of a process and the errors that it causes elsewhere

_logger = logging.getLogger("replicax")


@final
class Group:
    """Workers by rank; those on the same machine have consecutive ranks."""

    def __init__(self, placement: Any, resources: Mapping[str, float]) -> None:
        """Start an actor in each bundle of the placement group."""
        self._placement = placement
        options = actor_options(resources)
        self._workers = [
            ray.remote(Worker)
            .options(
                scheduling_strategy=scheduling.PlacementGroupSchedulingStrategy(placement, i), **options
            )
            .remote()
            for i in range(placement.bundle_count)
        ]

    def __len__(self) -> int:
        return len(self._workers)

    def run(self, train_fn: Callable[[], Any], restart: int) -> list[Any] | Failure:
        """Run the training function; returns the results of all workers, or the failure that ended them."""
        try:
            addresses = self._connect()
        except RayError as error:
            return Failure(0, error)
        refs = [
            worker.run.remote(train_fn, addresses, rank, restart)
            for rank, worker in enumerate(self._workers)
        ]
        outcome = _wait_for(refs)
        if not isinstance(outcome, Failure):
            ray.wait(
                [w.leave.remote() for w in self._workers], num_returns=len(self), timeout=_SECONDS_TO_LEAVE
            )
        return outcome

    def _connect(self) -> list[str]:
        nodes = ray.get([worker.node.remote() for worker in self._workers])
        order = sorted(range(len(nodes)), key=lambda i: nodes.index(nodes[i]))
        self._workers = [self._workers[i] for i in order]
        loopback = len(set(nodes)) == 1
        return ray.get([worker.address.remote(loopback) for worker in self._workers])

    def close(self) -> None:
        """Kill all workers, whatever they are doing."""
        for worker in self._workers:
            ray.kill(worker, no_restart=True)
        placement_groups.remove_placement_group(self._placement)


def _wait_for(refs: list[Any]) -> list[Any] | Failure:
    results: dict[int, Any] = {}
    failures: list[Failure] = []
    deadline = None
    while len(results) + len(failures) < len(refs):
        done = {*results, *(failure.rank for failure in failures)}
        pending = [ref for rank, ref in enumerate(refs) if rank not in done]
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _ = ray.wait(pending, num_returns=1, timeout=timeout)
        for ref in ready:
            _collect(ref, refs.index(ref), results, failures)
        if failures and (not ready or failures[-1].cause_order < 2):
            break
        if failures and deadline is None:
            deadline = time.monotonic() + _SECONDS_FOR_CAUSE
    return choose_cause(failures) if failures else [results[rank] for rank in range(len(refs))]


def _collect(ref: Any, rank: int, results: dict[int, Any], failures: list[Failure]) -> None:
    try:
        result = ray.get(ref)
    except RayError as error:
        result = error
    if isinstance(result, (Raised, RayError)):
        failures.append(Failure(rank, result))
    else:
        results[rank] = result


def place_group(
    num_workers: int, min_workers: int, resources: Mapping[str, float], timeout_seconds: float
) -> Group:
    """Place all workers within the timeout, otherwise as many as Ray can place.

    Raises:
        ClusterTimeoutError: Ray can't place `min_workers`.
    """
    group = _try_to_place(num_workers, resources, timeout_seconds)
    if group is not None:
        return group
    for fewer in range(min(num_workers - 1, _most_that_fit(resources)), min_workers - 1, -1):
        group = _try_to_place(fewer, resources, _SECONDS_FOR_FEWER)
        if group is not None:
            _logger.warning("Ray can place only %d of %d workers; training with those.", fewer, num_workers)
            return group
    least = "" if min_workers == num_workers else f", nor {min_workers}"
    raise ClusterTimeoutError(
        f"Ray could not place {num_workers} workers{least} with {dict(resources)} each within "
        f"{timeout_seconds:g} s. Free now: {_user_resources(ray.available_resources())}; in all: "
        f"{_user_resources(ray.cluster_resources())}. Ask for less in `resources_per_worker`, use fewer "
        "workers, pass `min_workers`, or wait longer with `placement_timeout_seconds`."
    )


def _try_to_place(num_workers: int, resources: Mapping[str, float], seconds: float) -> Group | None:
    placement = placement_groups.placement_group([dict(resources)] * num_workers, strategy="PACK")
    try:
        placed = placement.wait(seconds)
    except BaseException:
        placement_groups.remove_placement_group(placement)
        raise
    if placed:
        return Group(placement, resources)
    placement_groups.remove_placement_group(placement)
    return None


def _most_that_fit(resources: Mapping[str, float]) -> int:
    whole = ray.cluster_resources()
    return min((int(whole.get(name, 0) // need) for name, need in resources.items() if need), default=1)


def _user_resources(resources: Mapping[str, float]) -> dict[str, float]:
    """Drop Ray's internal resources: nodes, object store memory, and bundles of placement groups."""
    return {name: n for name, n in resources.items() if ":" not in name and "_" not in name}
