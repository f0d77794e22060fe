"""`ParameterServerStrategy`: variables on parameter servers, functions that workers run asynchronously."""

from __future__ import annotations

import atexit
import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from replicax.cluster import ClusterResolver, TFConfigClusterResolver
from replicax.collectives import Communicator, DefaultAllReduce
from replicax.errors import ClusterError, ContextError, VariableError
from replicax.parameter_server import _references
from replicax.parameter_server._cluster import Cluster, ClusterSize, FaultOptions
from replicax.parameter_server._placement import Placement, Placer
from replicax.parameter_server._servers import RayServers
from replicax.strategies import Answers, Strategy
from replicax.topology import REPLICA_AXIS, ReplicaMesh, resolve_devices
from replicax.types import VariableSynchronization
from replicax.variables import Layout, OnServers, Variable, VariableSpec

if TYPE_CHECKING:
    from replicax.parameter_server._coordinator import ClusterCoordinator

__all__ = ["ParameterServerStrategy"]


class ParameterServerStrategy(Strategy):
    """Asynchronous training: variables on parameter servers, steps on workers that do not wait.

    The program that creates the strategy is the coordinator. Servers and workers are processes on Ray.
    Without a Ray cluster, the strategy starts one on the loopback interface, which ends with the program. A
    `ClusterCoordinator` schedules functions on the workers. There, `strategy.run` runs a step on all
    devices of the worker. The step fetches its variables once before it runs, and sends its writes once
    afterwards. The servers run the optimizers.

    Args:
        cluster_resolver: a resolver whose cluster has the jobs "worker" and "ps". Its tasks are processes
            that call `tf.distribute.Server(...).join()`, unless an `address` is given; this one waits for
            them. None: TF_CONFIG, if it has such a cluster, or else `num_ps` and `num_workers`.
        variable_partitioner: divides large variables over the servers: a `FixedShardsPartitioner`, a
            `MinSizePartitioner` or a `MaxSizePartitioner`. None keeps every variable whole.
        num_ps: the number of servers.
        num_workers: the number of workers.
        address: the address of a Ray cluster. None: RAY_ADDRESS, the cluster that this process has joined,
            or a new one on this machine.
        resources_per_worker: what Ray reserves for a worker, such as `{"CPU": 4, "GPU": 1}`.
        resources_per_ps: what Ray reserves for a server.
        snapshot_seconds: how often the state of the servers is copied to the coordinator. A server that
            fails continues from there.
        heartbeat_timeout_seconds: a task that is silent for longer is replaced.
        max_staleness: how many other functions may end while a function runs, which therefore misses their
            updates; further ones wait. If each function is one step, no gradient misses more updates than
            that. 0 runs one function at a time. None for no limit.

    Raises:
        ClusterError: the cluster has no servers or no workers, or the numbers contradict each other.
        ContextError: in a worker: only the coordinator creates the strategy.

    This example starts processes::

        strategy = rx.ParameterServerStrategy(num_ps=1, num_workers=2)
        with strategy.scope():
            w = rx.Variable(0.0)
            optimizer = rx.Optimizer(optax.sgd(0.1))

        @rx.function
        def step(x):
            def replica_step(x):
                return optimizer.minimize(lambda: (w - x) ** 2, [w])
            return strategy.run(replica_step, args=(x,))

        coordinator = rx.ClusterCoordinator(strategy)
        for i in range(100):
            loss = coordinator.schedule(step, args=(np.float32(i),))
        coordinator.join()
        print(w.numpy(), loss.fetch())

    >>> rx.ParameterServerStrategy(num_ps=0, num_workers=2)        # doctest: +ELLIPSIS
    Traceback (most recent call last):
    replicax.errors.ClusterError: A ParameterServerStrategy needs at least one server and one worker, ...
    """

    coordinator: ClusterCoordinator | None = None
    """The coordinator of the strategy, if it has one."""

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        variable_partitioner: Callable[..., Sequence[int]] | None = None,
        *,
        num_ps: int | None = None,
        num_workers: int | None = None,
        address: str | None = None,
        resources_per_worker: Mapping[str, float] | None = None,
        resources_per_ps: Mapping[str, float] | None = None,
        snapshot_seconds: float = 30.0,
        heartbeat_timeout_seconds: float = 30.0,
        max_staleness: int | None = None,
    ) -> None:
        """Start the servers and the workers."""
        _refuse_in_worker()
        self.max_staleness = _checked_staleness(max_staleness)
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise TypeError(
                f"variable_partitioner={variable_partitioner!r}: pass a partitioner, such as "
                "`rx.MinSizePartitioner(max_shards=2)`."
            )
        cluster_resolver, num_ps, num_workers = _numbers(cluster_resolver, num_ps, num_workers)
        size = ClusterSize(
            num_ps,
            num_workers,
            dict(resources_per_ps or {"CPU": 1}),
            dict(resources_per_worker or {"CPU": 1}),
        )
        faults = FaultOptions(snapshot_seconds, heartbeat_timeout_seconds)
        spec = None if cluster_resolver is None else cluster_resolver.cluster_spec()
        self.cluster = Cluster(size, address, spec, faults)
        self.workers = [self.cluster.start_worker(i) for i in range(num_workers)]
        servers = RayServers(
            self.cluster.uid, [server.handle for server in self.cluster.servers], tell=self.cluster.tell
        )
        self._set_up(servers, Placer(num_ps, variable_partitioner), cluster_resolver)
        _references.join(self.cluster.uid, _references.Member(self, is_worker=False))
        atexit.register(self.shutdown)

    @classmethod
    def of_worker(cls, servers: RayServers) -> Self:
        """The strategy as a worker sees it."""
        self = cls.__new__(cls)
        self._set_up(servers, None, None)
        return self

    def _set_up(self, servers: RayServers, placer: Placer | None, resolver: ClusterResolver | None) -> None:
        self._dataset_functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        devices = resolve_devices(None)
        communicator = Communicator(ReplicaMesh(devices, REPLICA_AXIS), DefaultAllReduce())

        def choose_layout(spec: VariableSpec) -> tuple[VariableSpec, Layout]:
            spec = _checked(spec)
            if placer is None:
                raise ContextError(_created_in_worker(spec))
            layout = OnServers(communicator, servers, placer.place(spec))
            weakref.finalize(layout, servers.remove, layout.placement).atexit = False
            return spec, layout

        super().__init__(Answers(communicator, choose_layout, cluster_resolver=resolver, servers=servers))

    def attach_variable(self, spec: VariableSpec, placement: Placement) -> Variable:
        """A variable that another process has created."""
        assert isinstance(self.servers, RayServers)
        layout = OnServers(self.communicator, self.servers, placement)
        return Variable._make(spec, layout, self, None)

    def __reduce__(self) -> Any:
        assert isinstance(self.servers, RayServers)
        return _references.load_strategy, (self.servers.cluster,)

    def __repr__(self) -> str:
        assert isinstance(self.servers, RayServers)
        return f"ParameterServerStrategy(num_ps={len(self.servers)})"

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
        """As in other strategies. You can also pass the result to `fit` of a Keras model."""
        dataset = super().distribute_datasets_from_function(dataset_fn, options)
        self._dataset_functions[dataset] = dataset_fn
        return dataset

    def dataset_function_of(self, dataset: Any) -> Callable[..., Any] | None:
        """The function that `distribute_datasets_from_function` got for this dataset, if any."""
        return self._dataset_functions.get(dataset)

    def statistics(self) -> list[dict[str, Any]]:
        """For each server: the number of updates, a histogram of their staleness, and the bytes moved.

        The staleness of an update is the number of updates that the server made between the moment when the
        worker fetched its variables and the moment when its gradients arrived. The bytes are those of
        values, rows and gradients that were fetched from the server and sent to it.
        """
        assert isinstance(self.servers, RayServers)
        return self.servers.statistics()

    def shutdown(self) -> None:
        """End the workers and the servers, and Ray if the strategy started it. The variables are lost."""
        atexit.unregister(self.shutdown)
        _references.leave(self.cluster.uid)
        self.cluster.close(self.workers)


def _refuse_in_worker() -> None:
    from replicax.parameter_server._worker import get_current_worker_index

    if get_current_worker_index() is not None:
        raise ContextError(
            "A ParameterServerStrategy is created in a worker, where a module that the scheduled function "
            "needs was imported. Create the strategy only in the main program, under "
            '`if __name__ == "__main__":`.'
        )


def _checked_staleness(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError(
        f"max_staleness={value!r}: pass how many updates a gradient may miss, 0 or more, or None for no "
        "limit."
    )


def _created_in_worker(spec: VariableSpec) -> str:
    return (
        f"The variable '{spec.name}:0' is created in a scheduled function. Create variables in the "
        "coordinator, in `with strategy.scope():`, before the first `schedule`."
    )


def _checked(spec: VariableSpec) -> VariableSpec:
    spec.check_mean()
    if spec.synchronization is VariableSynchronization.NONE:
        raise VariableError(
            f"The variable '{spec.name}:0' was given synchronization NONE. Use AUTO, ON_WRITE or ON_READ."
        )
    return dataclasses.replace(spec)


def _numbers(
    resolver: ClusterResolver | None, num_ps: int | None, num_workers: int | None
) -> tuple[ClusterResolver | None, int, int]:
    """The numbers of servers and workers."""
    if resolver is None and num_ps is None and num_workers is None:
        resolver = TFConfigClusterResolver()
    if resolver is not None:
        spec = resolver.cluster_spec()
        found = [spec.num_tasks(job) if job in spec.jobs else 0 for job in ("ps", "worker")]
        for name, given, there in zip(("num_ps", "num_workers"), (num_ps, num_workers), found, strict=True):
            if given is not None and given != there:
                raise ClusterError(f"{name}={given}, but the cluster has {there}. Pass only one.")
        num_ps, num_workers = found
    if not num_ps or not num_workers or num_ps < 1 or num_workers < 1:
        raise ClusterError(
            f"A ParameterServerStrategy needs at least one server and one worker, got num_ps={num_ps} and "
            f"num_workers={num_workers}. Pass `num_ps=1, num_workers=2`, or a cluster with the jobs 'ps' "
            "and 'worker'."
        )
    return resolver, num_ps, num_workers
