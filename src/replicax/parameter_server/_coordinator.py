"""`ClusterCoordinator`: schedules functions on the workers of a `ParameterServerStrategy`."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from replicax.cluster import Raised
from replicax.errors import CancelledError, ContextError
from replicax.execution import Function
from replicax.input import DistributedDataset
from replicax.parameter_server._pickling import dumps, loads
from replicax.parameter_server._staleness import StalenessLimit
from replicax.parameter_server._strategy import ParameterServerStrategy
from replicax.parameter_server._values import PerWorkerValues, RemoteValue
from replicax.parameter_server._worker import get_current_worker_index
from replicax.parameter_server._worker_task import WorkerTask

__all__ = ["ClusterCoordinator", "KeptFunction"]

_SECONDS_BETWEEN_LOOKS = 2.0
_ENDED = "the processes of the strategy were ended"

_logger = logging.getLogger("replicax")


@final
@dataclasses.dataclass(eq=False)
class _Call:
    """A scheduled function."""

    function: str | bytes
    arguments: bytes
    value: RemoteValue


@final
class KeptFunction:
    """A function that is scheduled often and refers to the same objects each time, so it is sent once."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn, self.token = fn, object()
        self.__qualname__ = fn.__qualname__

    def __call__(self, *args: Any) -> Any:
        return self._fn(*args)

    def __reduce__(self) -> Any:
        return KeptFunction, (self._fn,)


@final
class ClusterCoordinator:
    """Schedules functions on the workers of a `ParameterServerStrategy`.

    A function runs on the next worker that is free, at least once: if its worker fails, it runs again on
    another one. If it raises an error, the functions that are still waiting are cancelled, and the next
    `schedule`, `join` or `fetch` raises that error; after that, functions can be scheduled again. There is
    one coordinator for each strategy: `ClusterCoordinator(strategy)` always returns the same object.

    Args:
        strategy: a `ParameterServerStrategy`.
        max_queued: how many functions may wait; `schedule` blocks while there are more.

    This example starts processes::

        strategy = rx.ParameterServerStrategy(num_ps=1, num_workers=2)
        coordinator = rx.ClusterCoordinator(strategy)
        values = [coordinator.schedule(lambda x: x + 1, args=(i,)) for i in range(3)]
        coordinator.join()
        print(coordinator.fetch(values))    # [1, 2, 3]

    >>> rx.ClusterCoordinator(rx.OneDeviceStrategy("CPU:0"))       # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: rx.ClusterCoordinator takes an rx.ParameterServerStrategy, got OneDeviceStrategy(...). ...
    """

    def __new__(cls, strategy: ParameterServerStrategy, *, max_queued: int = 1024) -> ClusterCoordinator:
        """The coordinator of the strategy, if it has one."""
        existing = getattr(strategy, "coordinator", None)
        return object.__new__(cls) if existing is None else existing

    def __init__(self, strategy: ParameterServerStrategy, *, max_queued: int = 1024) -> None:
        """Start handing out functions."""
        if not isinstance(strategy, ParameterServerStrategy):
            raise TypeError(
                f"rx.ClusterCoordinator takes an rx.ParameterServerStrategy, got {strategy!r}. Other "
                "strategies run their steps in this process: call `strategy.run`."
            )
        if get_current_worker_index() is not None:
            raise ContextError(
                "A ClusterCoordinator is created in a worker. Schedule functions in the main program only."
            )
        if max_queued < 1:
            raise ValueError(f"max_queued={max_queued!r}: pass 1 or more.")
        if strategy.coordinator is self:
            if max_queued != self._max_queued:
                raise ContextError(
                    f"max_queued={max_queued!r}, but this strategy has a ClusterCoordinator already, with "
                    f"max_queued={self._max_queued}. There is one for each strategy."
                )
            return
        strategy.coordinator = self
        self._strategy, self._cluster = strategy, strategy.cluster
        self._max_queued = max_queued
        self._state = threading.Condition()
        self._queue: collections.deque[_Call] = collections.deque()
        self._running = 0
        self._limit = StalenessLimit(strategy.max_staleness)
        self._error: BaseException | None = None
        self._numbers = itertools.count()
        self._functions: dict[str, bytes] = {}
        self._keys: dict[int, tuple[Any, str]] = {}
        self._resources: dict[str, tuple[bytes, bytes]] = {}
        self._building, self._adding = threading.Lock(), threading.Lock()
        self._workers = [WorkerTask(self, i) for i in range(len(strategy.workers))]
        self._cluster.on_close(self._cancel_all)
        self._cluster.watch("joining", self._watch_joining)

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The strategy whose workers run the functions."""
        return self._strategy

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteValue:
        """Run a function on the next free worker; returns immediately.

        Args:
            fn: the function; a step that is called often should be an `rx.function`, which each worker
                compiles once. Variables, optimizers and the strategy that it refers to are the same objects
                in the worker; everything else is copied.
            args: positional arguments. A worker gets its own object for a `PerWorkerValues`.
            kwargs: keyword arguments.

        Returns:
            A `RemoteValue`, whose `fetch` waits for the result.

        Raises:
            Exception: what an earlier function raised.
        """
        if not callable(fn):
            raise TypeError(f"coordinator.schedule takes a function, got {fn!r}.")
        if args is not None and not isinstance(args, list | tuple):
            raise TypeError(
                f"coordinator.schedule(fn, args=...) takes a tuple of arguments, got {args!r}. For one "
                "argument write args=(x,)."
            )
        call = _Call(self._function(fn), _pickled((tuple(args or ()), dict(kwargs or {}))), _value(fn))
        with self._state:
            self._state.wait_for(self._can_queue)
            self._raise_error()
            self._check_open()
            self._queue.append(call)
            self._state.notify_all()
        return call.value

    def join(self) -> None:
        """Wait until all scheduled functions have run.

        Raises:
            Exception: what one of them raised.
        """
        with self._state:
            self._state.wait_for(self._is_done)
            self._raise_error()

    def done(self) -> bool:
        """Whether all scheduled functions have run.

        Raises:
            Exception: what one of them raised.
        """
        with self._state:
            self._raise_error()
            return self._is_done()

    def fetch(self, value: Any) -> Any:
        """Wait for values, and return them in the same structure.

        Args:
            value: a `RemoteValue`, or a structure of them.
        """
        import jax

        return jax.tree.map(lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, value)

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerValues:
        """A dataset in every worker.

        Args:
            dataset_fn: a function that returns anything that `strategy.distribute_dataset` takes, or such a
                dataset itself, which is then copied to every worker. Its batches are split over the
                replicas of the worker. All workers see the same data unless the function shuffles or
                selects, for example by `rx.get_current_worker_index()`.

        Returns:
            A `PerWorkerValues`: `iter` of it is an argument for scheduled functions.
        """
        return self.create_per_worker_resource(_distributed, args=(self._strategy, dataset_fn))

    def create_per_worker_resource(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> PerWorkerValues:
        """An object in every worker: what `fn` returns there. A worker that is replaced makes it again."""
        key = f"resource {next(self._numbers)}"
        made = self._resources[key] = _pickled(fn), _pickled((tuple(args), dict(kwargs or {})))
        try:
            for wait in [worker.hold(key, *made) for worker in self._workers]:
                wait()
        except BaseException:
            del self._resources[key]
            raise
        return PerWorkerValues(self._cluster.uid, key, self)

    def add_workers(self, count: int = 1) -> None:
        """Start more workers; they take functions as soon as they have started.

        On a Ray cluster that has no room for them they wait until it has. They make their own objects of
        all `PerWorkerValues` first.

        Args:
            count: how many.
        """
        if count < 1:
            raise ValueError(f"coordinator.add_workers({count!r}): pass 1 or more.")
        for _ in range(count):
            self._add_worker(None)

    def _add_worker(self, task_index: int | None) -> None:
        with self._adding:
            self._strategy.workers.append(self._cluster.add_worker(task_index))
            self._workers.append(WorkerTask(self, len(self._workers)))

    def _watch_joining(self) -> None:
        """Use workers that join later."""
        while not self._cluster.wait_closed(_SECONDS_BETWEEN_LOOKS):
            for task_index in self._cluster.new_workers():
                _logger.info("worker %d joins.", task_index)
                self._add_worker(task_index)

    def on_each_worker(
        self, fn: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]]
    ) -> list[Any]:
        """Call a function once in every worker, between other functions; returns the results.

        Args:
            fn: the function.
            arguments: returns its arguments for the worker with an index.
        """
        pickled = _pickled(fn)
        waits = [w.call(pickled, _pickled((arguments(i), {}))) for i, w in enumerate(self._workers)]
        return [wait() for wait in waits]

    # For the workers' threads.

    def _function(self, fn: Any) -> str | bytes:
        """How to name a function to a worker: by a key that it has been told, or by the function itself."""
        if not isinstance(fn, Function | KeptFunction):
            return _pickled(fn)
        if id(fn.token) not in self._keys:
            key = f"function {next(self._numbers)}"
            self._functions[key] = _pickled(fn)
            self._keys[id(fn.token)] = fn.token, key
        return self._keys[id(fn.token)][1]

    def _is_done(self) -> bool:
        return not self._queue and not self._running

    def _can_start(self) -> bool:
        return bool(self._queue and self._limit.may_start()) or self._cluster.is_closed

    def _can_queue(self) -> bool:
        return len(self._queue) < self._max_queued or self._error is not None or self._cluster.is_closed

    def _check_open(self) -> None:
        if self._cluster.is_closed:
            raise ContextError(
                "The processes of this ParameterServerStrategy have been ended by `strategy.shutdown()`, "
                "so no function can run. Create another strategy."
            )

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def next_call(self) -> _Call | None:
        """The next function to run; None if the cluster was closed."""
        with self._state:
            self._state.wait_for(self._can_start)
            if self._cluster.is_closed:
                return None
            self._running += 1
            call = self._queue.popleft()
            self._limit.start(call)
            self._state.notify_all()
            return call

    def give_back(self, call: _Call) -> None:
        """The worker has failed: another one will run the function."""
        with self._state:
            self._running -= 1
            self._limit.end(call)
            self._queue.appendleft(call)
            if self._cluster.is_closed:
                self._cancel(_ENDED)
            else:
                _logger.warning("%s runs again.", call.value.name)
            self._state.notify_all()

    def finish(self, call: _Call, index: int, result: Any) -> None:
        """A function has run."""
        with self._state:
            self._running -= 1
            self._limit.end(call)
            if isinstance(result, Raised):
                call.value.set_error(result.error)
                self._fail(index, call.value.name, result)
            else:
                call.value.set_result(result)
            self._state.notify_all()

    def report(self, index: int, what: str, raised: Raised) -> None:
        """A worker failed at something that no call waits for."""
        with self._state:
            self._fail(index, what, raised)
            self._state.notify_all()

    def _fail(self, index: int, what: str, raised: Raised) -> None:
        raised.error.add_note(f"Raised in worker {index}:\n\n{raised.traceback.strip()}")
        self._error = self._error or raised.error
        message = "worker %d: %s raised %s; %d functions that were waiting are cancelled."
        _logger.warning(message, index, what, type(raised.error).__name__, len(self._queue))
        self._cancel("a function that was scheduled before it raised an error")

    def _cancel(self, why: str) -> None:
        while self._queue:
            value = self._queue.popleft().value
            value.set_error(CancelledError(f"{value.name} was cancelled: {why}."))

    def _cancel_all(self) -> None:
        """The cluster is closed: end all waiting."""
        with self._state:
            self._cancel(_ENDED)
            self._state.notify_all()

    def functions(self) -> dict[str, bytes]:
        """The functions that workers keep."""
        return self._functions

    def resources(self) -> dict[str, tuple[bytes, bytes]]:
        """The objects that every worker has."""
        return dict(self._resources)

    def build(self, request: bytes) -> Exception | None:
        """Build an optimizer that a worker needs."""
        try:
            with self._building:
                optimizer, variables = loads(request)
                optimizer.build(variables)
        except Exception as error:
            return error
        return None


def _pickled(value: Any) -> bytes:
    return dumps(value)


def _value(fn: Any) -> RemoteValue:
    return RemoteValue(getattr(fn, "__qualname__", repr(fn)))


def _distributed(strategy: ParameterServerStrategy, dataset_fn: Any) -> Any:
    """In a worker: the dataset, split over the replicas of the worker."""
    dataset = dataset_fn() if callable(dataset_fn) else dataset_fn
    if isinstance(dataset, DistributedDataset):
        return dataset
    return strategy.distribute_dataset(dataset)
