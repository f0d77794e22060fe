"""`RayTrainClusterResolver`: the workers of a Ray Train trainer, such as its `JaxTrainer`.

Ray Train knows a worker's rank and the number of workers. The first worker chooses an address and
broadcasts it through Ray. This module never imports Ray: a Ray Train worker has already imported it.
"""

from __future__ import annotations

import importlib
import socket
import sys
from typing import Any, final

from replicax.cluster._workers import WorkersResolver, format_address, pad_addresses
from replicax.errors import ClusterError, NotInClusterError

__all__ = ["RayTrainClusterResolver", "runs_in_ray_train", "runs_in_ray_worker"]


def runs_in_ray_worker() -> bool:
    """Whether this process is a Ray task or actor."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return False
    context = ray.get_runtime_context()
    return (context.get_task_id() or context.get_actor_id()) is not None


def runs_in_ray_train() -> bool:
    """Whether this process is one of several Ray Train workers."""
    return "ray.train" in sys.modules and runs_in_ray_worker() and _find_context() is not None


def _find_context() -> Any:
    """Ray Train's context; None outside a worker."""
    try:
        context = sys.modules["ray.train"].get_context()
        return context if context.get_world_size() is not None else None
    except (RuntimeError, AttributeError):
        return None


@final
class RayTrainClusterResolver(WorkersResolver):
    """A resolver for Ray Train workers. All of them must create one, because they exchange an address.

    Args:
        rpc_layer: the protocol of the URLs that `master` returns.

    Raises:
        NotInClusterError: this process is not a worker of Ray Train.
        ClusterError: this is version 1 of Ray Train, which has no broadcast between workers.

    >>> from replicax.cluster import RayTrainClusterResolver
    >>> RayTrainClusterResolver()
    Traceback (most recent call last):
        ...
    replicax.errors.NotInClusterError: This process is not a worker of Ray Train. ...
    """

    def __init__(self, rpc_layer: str | None = None) -> None:
        if not runs_in_ray_train():
            raise NotInClusterError(
                "This process is not a worker of Ray Train. Create the strategy in the function that a "
                "trainer runs, or start the workers with `replicax.integrations.ray.run`."
            )
        context = _find_context()
        rank, num_workers = context.get_world_rank(), context.get_world_size()
        address = _broadcast(_choose_address(context) if rank == 0 else None)
        super().__init__(pad_addresses(address, num_workers), rank, rpc_layer)


def _choose_address(context: Any) -> str:
    """The address of a free port here; on the loopback interface if all workers run on this host."""
    ip = sys.modules["ray"].util.get_node_ip_address()
    host = "127.0.0.1" if context.get_local_world_size() == context.get_world_size() else ip
    with socket.socket() as free:
        free.bind((host, 0))
        return format_address(host, free.getsockname()[1])


def _broadcast(address: str | None) -> str:
    try:
        collective = importlib.import_module("ray.train.collective")
    except ImportError as error:
        raise ClusterError(
            "RayTrainClusterResolver needs version 2 of Ray Train: set RAY_TRAIN_V2_ENABLED=1 before Ray "
            f"is imported. ({error})"
        ) from error
    return collective.broadcast_from_rank_zero(address)
