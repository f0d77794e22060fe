"""`ClusterCoordinator`: schedules functions on the workers of a `ParameterServerStrategy`."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from replicax.cluster import Raised
from replicax.errors import ContextError
from replicax.execution import Function
from replicax.input import DistributedDataset
from replicax.parameter_server._cluster import is_dead
from replicax.parameter_server._ray import cloudpickle, library
from replicax.parameter_server._staleness import StalenessLimit
from replicax.parameter_server._strategy import ParameterServerStrategy
from replicax.parameter_server._values import PerWorkerValues, RemoteValue
from replicax.training import Optimizer

__all__ = ["ClusterCoordinator"]

_LISTEN_SECONDS = 1.0

_logger = logging.getLogger("replicax")


@final
@dataclasses.dataclass(eq=False)
class _Call:
    """A scheduled function."""

    function: str | bytes
    arguments: bytes
    value: RemoteValue


@final
class ClusterCoordinator:
    """Schedules functions on the workers of a `ParameterServerStrategy`.

    A function runs on the next worker that is free, at least once: if its worker fails, it runs again on
    another one. If it raises an error, the functions that are still waiting are cancelled, and the next
    `schedule`, `join` or `fetch` raises that error; after that, functions can be scheduled again.

    Args:
        strategy: a `ParameterServerStrategy`.
        max_queued: how many functions may wait; `schedule` blocks while there are more.

    These lines start processes, so they are not run here; the last ones are::

        strategy = rx.ParameterServerStrategy(num_ps=1, num_workers=2)
        coordinator = rx.ClusterCoordinator(strategy)
        values = [coordinator.schedule(lambda x: x + 1, args=(i,)) for i in range(3)]
        coordinator.join()
        print(coordinator.fetch(values))    # [1, 2, 3]

    >>> rx.ClusterCoordinator(rx.OneDeviceStrategy("CPU:0"))       # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: rx.ClusterCoordinator takes an rx.ParameterServerStrategy, got OneDeviceStrategy(...). ...
    """

    def __init__(self, strategy: ParameterServerStrategy, *, max_queued: int = 1024) -> None:
        """Start to hand out functions."""
        if not isinstance(strategy, ParameterServerStrategy):
            raise TypeError(
                f"rx.ClusterCoordinator takes an rx.ParameterServerStrategy, got {strategy!r}. Other "
                "strategies run their steps in this process: call `strategy.run`."
            )
        if max_queued < 1:
            raise ValueError(f"max_queued={max_queued!r}: pass 1 or more.")
        if strategy.cluster.has_coordinator:
            raise ContextError("This strategy has a ClusterCoordinator already. Use that one.")
        strategy.cluster.has_coordinator = True
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
        self._building = threading.Lock()
        self._lanes = [_Lane(self, i) for i in range(len(strategy.workers))]

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The strategy."""
        return self._strategy

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteValue:
        """Run a function on the next worker that is free; returns immediately.

        Args:
            fn: the function; a step that is called often should be an `rx.function`, which each worker
                compiles once. Variables, optimizers and the strategy that it refers to stand for the same
                objects in the worker; everything else is copied.
            args: positional arguments. A `PerWorkerValues` stands for the worker's own object.
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
            self._state.wait_for(lambda: len(self._queue) < self._max_queued or self._error is not None)
            self._raise_error()
            self._queue.append(call)
            self._state.notify_all()
        return call.value

    def join(self) -> None:
        """Wait until all functions that were scheduled have run.

        Raises:
            Exception: what one of them raised.
        """
        with self._state:
            self._state.wait_for(self._is_done)
            self._raise_error()

    def done(self) -> bool:
        """Whether all functions that were scheduled have run.

        Raises:
            Exception: what one of them raised.
        """
        with self._state:
            self._raise_error()
            return self._is_done()

    def fetch(self, value: Any) -> Any:
        """Wait for values, and return them with their structure.

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
        for lane in self._lanes:
            lane.hold(key, *made)
        return PerWorkerValues(self._cluster.uid, key, self)

    # For the lanes.

    def _function(self, fn: Any) -> str | bytes:
        """What names a function to a worker: a key that it is told once, or the function itself."""
        if not isinstance(fn, Function):
            return _pickled(fn)
        if id(fn.token) not in self._keys:
            key = f"function {next(self._numbers)}"
            self._functions[key] = _pickled(fn)
            self._keys[id(fn.token)] = fn.token, key
        return self._keys[id(fn.token)][1]

    def _is_done(self) -> bool:
        return not self._queue and not self._running

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def next_call(self) -> _Call | None:
        """The next function to run; None if the cluster was closed."""
        with self._state:
            while not self._queue or not self._limit.may_start():
                if self._cluster.is_closed:
                    return None
                self._state.wait(1.0)
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
            self._state.notify_all()

    def finish(self, call: _Call, index: int, result: Any) -> None:
        """A function has run."""
        with self._state:
            self._running -= 1
            self._limit.end(call)
            if isinstance(result, Raised):
                self._fail(call, _with_note(result, index))
            else:
                call.value.set_result(result)
            self._state.notify_all()

    def _fail(self, call: _Call, error: BaseException) -> None:
        call.value.set_error(error)
        self._error = self._error or error
        while self._queue:
            self._queue.popleft().value.cancel()

    def functions(self) -> dict[str, bytes]:
        """The functions that workers keep."""
        return self._functions

    def resources(self) -> dict[str, tuple[bytes, bytes]]:
        """The objects that every worker has."""
        return dict(self._resources)

    def build(self, request: bytes) -> Exception | None:
        """Build an optimizer that a worker has met."""
        try:
            with self._building:
                optimizer, variables = cloudpickle().loads(request)
                assert isinstance(optimizer, Optimizer)
                optimizer.build(variables)
        except Exception as error:
            return error
        return None


@final
class _Lane:
    """One worker: a thread that gives it functions, and a thread that watches it."""

    def __init__(self, coordinator: ClusterCoordinator, index: int) -> None:
        self._coordinator, self._index = coordinator, index
        self._cluster = coordinator.strategy.cluster
        self._known: set[str] = set()
        self._replacing = threading.RLock()
        self._cluster.watch(f"worker {index}", self._work)
        self._cluster.watch(f"worker {index} listener", self._listen)

    @property
    def _actor(self) -> Any:
        return self._coordinator.strategy.workers[self._index]

    def _work(self) -> None:
        while (call := self._coordinator.next_call()) is not None:
            actor = self._actor
            try:
                self._teach(actor, call.function)
                result = library().get(actor.run.remote(call.function, call.arguments))
            except Exception as error:
                if not is_dead(error):  # the function or its result can't be pickled, for example
                    self._coordinator.finish(call, self._index, Raised.catch(error))
                    continue
                self._coordinator.give_back(call)
                if self._cluster.is_closed:
                    return
                self._replace(actor, error)
            else:
                self._coordinator.finish(call, self._index, result)

    def _teach(self, actor: Any, function: str | bytes) -> None:
        if isinstance(function, str) and function not in self._known:
            library().get(actor.learn.remote(function, self._coordinator.functions()[function]))
            self._known.add(function)

    def _replace(self, failed: Any, error: Exception) -> None:
        """Start another worker in the place of one that has failed, with all objects that it had."""
        with self._replacing:
            if self._actor is not failed:
                return
            start = time.monotonic()
            _logger.warning("worker %d failed (%s); its function runs again.", self._index, _reason(error))
            self._cluster.kill(failed)
            actor = self._cluster.start_worker(self._index)
            self._known = set()
            for key, made in self._coordinator.resources().items():
                _raise_if_failed(library().get(actor.hold.remote(key, *made)))
            self._coordinator.strategy.workers[self._index] = actor
            _logger.warning("worker %d was replaced after %.1f s.", self._index, time.monotonic() - start)

    def hold(self, key: str, function: bytes, arguments: bytes) -> None:
        """Let the worker make an object."""
        actor = self._actor
        try:
            _raise_if_failed(library().get(actor.hold.remote(key, function, arguments)))
        except library().exceptions.RayActorError as error:
            self._replace(actor, error)

    def _listen(self) -> None:
        started = None
        while not self._cluster.is_closed:
            actor = self._actor
            try:
                if actor is not started:
                    self._cluster.await_start(actor)
                    started = actor
                ref = actor.listen.options(concurrency_group="watch").remote(_LISTEN_SECONDS)
                limit = _LISTEN_SECONDS + self._cluster.faults.heartbeat_timeout_seconds
                request = library().get(ref, timeout=limit)
                if request is not None:
                    error = self._coordinator.build(request)
                    library().get(actor.answer.options(concurrency_group="watch").remote(error))
            except Exception as error:
                if self._cluster.is_closed:
                    return
                if not is_dead(error):
                    raise
                self._replace(actor, error)


def _reason(error: BaseException) -> str:
    silent = isinstance(error, library().exceptions.GetTimeoutError)
    return "it does not answer" if silent else "its process has ended"


def _pickled(value: Any) -> bytes:
    return cloudpickle().dumps(value)


def _value(fn: Any) -> RemoteValue:
    return RemoteValue(getattr(fn, "__qualname__", repr(fn)))


def _with_note(raised: Raised, index: int) -> BaseException:
    raised.error.add_note(f"Raised in worker {index}:\n\n{raised.traceback.strip()}")
    return raised.error


def _raise_if_failed(result: Any) -> None:
    if isinstance(result, Raised):
        raise result.error


def _distributed(strategy: ParameterServerStrategy, dataset_fn: Any) -> Any:
    """In a worker: the dataset, split over the replicas of the worker."""
    dataset = dataset_fn() if callable(dataset_fn) else dataset_fn
    if isinstance(dataset, DistributedDataset):
        return dataset
    return strategy.distribute_dataset(dataset)
