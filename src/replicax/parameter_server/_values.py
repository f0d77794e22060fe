"""What scheduled functions return, and objects that each worker has a copy of."""

from __future__ import annotations

import enum
import threading
from typing import Any, final

from replicax.parameter_server import _references

__all__ = ["PerWorkerValues", "RemoteValue", "RemoteValueStatus"]


class RemoteValueStatus(enum.Enum):
    """Whether the function of a `RemoteValue` has run.

    >>> rx.RemoteValueStatus.READY.name
    'READY'
    """

    NOT_READY = "NOT_READY"
    READY = "READY"
    ABORTED = "ABORTED"


@final
class RemoteValue:
    """The result of a scheduled function, which may not have run yet; see `ClusterCoordinator.schedule`.

    >>> value = coordinator.schedule(step, args=(iterator,))       # doctest: +SKIP
    >>> value.fetch()                                              # doctest: +SKIP
    array(0.5, dtype=float32)
    """

    def __init__(self, name: str) -> None:
        """A value that the function `name` will return."""
        self.name = name
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<rx.RemoteValue of {self.name}, {self.status.name}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} can't be an argument of a scheduled function: the value is in this process. Pass "
            "`value.fetch()`, or make an object in every worker: `coordinator.create_per_worker_resource`."
        )

    @property
    def status(self) -> RemoteValueStatus:
        """Whether the function has run, or failed."""
        if not self._done.is_set():
            return RemoteValueStatus.NOT_READY
        return RemoteValueStatus.READY if self._error is None else RemoteValueStatus.ABORTED

    def fetch(self) -> Any:
        """Wait for the function, and return its result, with NumPy arrays in place of JAX's.

        Raises:
            CancelledError: the function was cancelled, because another one raised an error.
            Exception: what the function raised.
        """
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result

    get = fetch

    def set_result(self, result: Any) -> None:
        """The function has run."""
        self._result = result
        self._done.set()

    def set_error(self, error: BaseException) -> None:
        """The function has failed."""
        self._error = error
        self._done.set()


@final
class PerWorkerValues:
    """An object that each worker has a copy of; a scheduled function gets its worker's.

    Made by `ClusterCoordinator.create_per_worker_dataset` and `create_per_worker_resource`. `iter` of a
    per-worker dataset makes an iterator in every worker.

    >>> dataset = coordinator.create_per_worker_dataset(make_dataset)      # doctest: +SKIP
    >>> coordinator.schedule(step, args=(iter(dataset),))                  # doctest: +SKIP
    """

    def __init__(self, cluster: str, key: str, coordinator: Any) -> None:
        """The object that the workers keep by `key`."""
        self._cluster, self._key, self._coordinator = cluster, key, coordinator

    def __repr__(self) -> str:
        return f"<rx.PerWorkerValues {self._key}>"

    def __reduce__(self) -> Any:
        return _references.load_resource, (self._cluster, self._key)

    def __iter__(self) -> PerWorkerValues:
        """An iterator in every worker, over the worker's own dataset."""
        return self._coordinator.create_per_worker_resource(iter, args=(self,))

    def state(self) -> dict[str, Any]:
        """The position of each worker's iterator, for a checkpoint; None for objects without a `state()`.

        Call `coordinator.join()` first: a function that runs meanwhile may move on.
        """
        return {"workers": self._coordinator.on_each_worker(_state_of, lambda _: (self,))}

    def restore(self, state: dict[str, Any]) -> None:
        """Return to positions from `state()`; workers that did not exist then keep theirs."""
        states = state["workers"]
        self._coordinator.on_each_worker(
            _restore_to, lambda i: (self, states[i] if i < len(states) else None)
        )

    def __next__(self) -> Any:
        raise TypeError(
            "An iterator over a per-worker dataset is used in scheduled functions only: pass it with "
            "`coordinator.schedule(step, args=(iterator,))`, and write `next(iterator)` in `step`."
        )


def _state_of(thing: Any) -> Any:
    """In a worker."""
    return thing.state() if callable(getattr(thing, "state", None)) else None


def _restore_to(thing: Any, state: Any) -> None:
    """In a worker."""
    if state is not None:
        thing.restore(state)
