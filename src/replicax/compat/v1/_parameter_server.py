"""`ParameterServerStrategy` with the v1 API."""

from __future__ import annotations

from typing import Any, final

from replicax import parameter_server as core
from replicax.cluster import ClusterResolver
from replicax.compat.v1._strategies import Strategy

__all__ = ["ParameterServerStrategy"]


@core.ParameterServerStrategy.register
@final
class ParameterServerStrategy(Strategy):
    """`rx.ParameterServerStrategy` with the v1 API; it takes the same arguments.

    In TensorFlow 1 every worker ran the whole program. Here one program is the coordinator, as in version
    2, and schedules functions with an `rx.ClusterCoordinator`.

    >>> from replicax.compat import v1
    >>> issubclass(v1.ParameterServerStrategy, rx.ParameterServerStrategy)
    True
    """

    def __init__(self, cluster_resolver: ClusterResolver | None = None, **options: Any) -> None:
        self._strategy = core.ParameterServerStrategy(cluster_resolver, **options)
        super().__init__(self._strategy)

    def __reduce__(self) -> Any:
        return self._strategy.__reduce__()

    @property
    def cluster(self) -> Any:
        """The servers and workers."""
        return self._strategy.cluster

    @property
    def max_staleness(self) -> int | None:
        """How many updates a gradient may be behind."""
        return self._strategy.max_staleness

    @property
    def workers(self) -> list[Any]:
        """The workers."""
        return self._strategy.workers

    @property
    def coordinator(self) -> core.ClusterCoordinator | None:
        """The coordinator of the strategy, if it has one."""
        return self._strategy.coordinator

    @coordinator.setter
    def coordinator(self, coordinator: core.ClusterCoordinator) -> None:
        self._strategy.coordinator = coordinator

    def dataset_function_of(self, dataset: Any) -> None:
        """None: `fit` takes the function itself."""

    def statistics(self) -> list[dict[str, Any]]:
        """See `rx.ParameterServerStrategy.statistics`."""
        return self._strategy.statistics()

    def shutdown(self) -> None:
        """Stop the workers and the servers, and Ray if the strategy started it."""
        self._strategy.shutdown()
