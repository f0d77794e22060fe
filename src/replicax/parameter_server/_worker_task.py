"""One worker as the coordinator sees it: given functions, watched, and replaced if it fails."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from replicax.cluster import Raised
from replicax.parameter_server._failures import is_dead, reason
from replicax.parameter_server._ray import library

if TYPE_CHECKING:
    from replicax.parameter_server._coordinator import ClusterCoordinator

__all__ = ["WorkerTask"]

_LISTEN_SECONDS = 1.0

_logger = logging.getLogger("replicax")


@final
class WorkerTask:
    """One worker: a thread that gives it functions, and a thread that watches it.

    Args:
        coordinator: its coordinator.
        index: its number.
    """

    def __init__(self, coordinator: ClusterCoordinator, index: int) -> None:
        self._coordinator, self._index = coordinator, index
        self._cluster = coordinator.strategy.cluster
        self._taught: tuple[Any, set[str]] = None, set()
        self._held: dict[str, Raised | None] = {}
        self._replacing = threading.RLock()
        self._cluster.watch(f"worker {index}", self._work)
        self._cluster.watch(f"the listener of worker {index}", self._listen)

    @property
    def actor(self) -> Any:
        """The current actor of the worker."""
        return self._coordinator.strategy.workers[self._index]

    # Giving it functions.

    def _work(self) -> None:
        self._prepare_first()
        while (call := self._coordinator.next_call()) is not None:
            actor = self.actor
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
        if self._taught[0] is not actor:
            self._taught = actor, set()
        known = self._taught[1]
        if isinstance(function, str) and function not in known:
            library().get(actor.learn.remote(function, self._coordinator.functions()[function]))
            known.add(function)

    def call(self, function: bytes, arguments: bytes) -> Callable[[], Any]:
        """Call a function on this worker; returns a function that waits for the result."""
        with self._replacing:
            actor = self.actor
            ref = actor.run.remote(function, arguments)

        def wait() -> Any:
            try:
                result = library().get(ref)
            except library().exceptions.RayActorError as error:
                self._replace(actor, error)
                return self.call(function, arguments)()
            _raise_if_failed(result)
            return result

        return wait

    # Its objects.

    def hold(self, key: str, function: bytes, arguments: bytes) -> Callable[[], None]:
        """Let the worker make an object; returns a function that waits for it."""
        with self._replacing:
            if key in self._held:  # a new worker has made it already, or could not
                return functools.partial(_raise_if_failed, self._held[key])
            self._held[key], actor = None, self.actor
            ref = actor.hold.remote(key, function, arguments)

        def wait() -> None:
            try:
                _raise_if_failed(library().get(ref))
            except library().exceptions.RayActorError as error:
                self._replace(actor, error)
                self.hold(key, function, arguments)()

        return wait

    def _prepare(self, actor: Any) -> int:
        """Make a new worker create the objects that all workers have; returns its process id."""
        pid = self._cluster.await_start(actor)
        for key, made in self._coordinator.resources().items():
            if key not in self._held:
                self._held[key] = self._cluster.get(actor.hold.remote(key, *made), actor)
        return pid

    # Watching it.

    def _prepare_first(self) -> None:
        actor = self.actor
        try:
            with self._replacing:
                _logger.info("worker %d runs in process %d.", self._index, self._prepare(actor))
        except Exception as error:
            if not is_dead(error):
                raise
            if not self._cluster.is_closed:
                self._replace(actor, error)

    def _replace(self, failed: Any, error: Exception) -> None:
        """Replace a worker that has failed, with all objects that it had."""
        with self._replacing:
            start = time.monotonic()
            while self.actor is failed and not self._cluster.is_closed:
                _logger.warning("worker %d failed (%s).", self._index, reason(error))
                self._cluster.kill(failed)
                self._held, actor = {}, self._cluster.start_worker(self._index)
                try:
                    pid = self._prepare(actor)
                except Exception as another:
                    if not is_dead(another):
                        raise
                    self._cluster.kill(actor)
                    error = another
                    continue
                self._coordinator.strategy.workers[self._index] = actor
                self._announce(pid, time.monotonic() - start)

    def _announce(self, pid: int, seconds: float) -> None:
        message = "worker %d was replaced after %.1f s, by process %d."
        _logger.warning(message, self._index, seconds, pid)
        for key, result in self._held.items():
            if isinstance(result, Raised):
                self._coordinator.report(self._index, f"making {key} again", result)

    def _listen(self) -> None:
        while not self._cluster.is_closed:
            actor = self.actor
            try:
                self._cluster.await_start(actor)
                while self.actor is actor and not self._cluster.is_closed:
                    self._answer_next_request(actor)
            except Exception as error:
                if self._cluster.is_closed:
                    return
                if not is_dead(error):
                    raise
                self._replace(actor, error)

    def _answer_next_request(self, actor: Any) -> None:
        ref = actor.listen.options(concurrency_group="watch").remote(_LISTEN_SECONDS)
        limit = _LISTEN_SECONDS + self._cluster.faults.heartbeat_timeout_seconds
        request = library().get(ref, timeout=limit)
        if request is not None:
            error = self._coordinator.build(request)
            library().get(actor.answer.options(concurrency_group="watch").remote(error))


def _raise_if_failed(result: Any) -> None:
    if isinstance(result, Raised):
        raise result.error
