"""Eager replicas: ordinary Python functions that take turns in one thread.

A replica is a greenlet. It runs until it returns or reaches a `merge_call`; then the next one runs. When
all replicas wait at the same merge_call, its function is called once, in the cross-replica context, and
each replica continues with its part of the result. So the order is deterministic, `print` and
`breakpoint()` work as usual, and exceptions have the user's own traceback.

Compiled steps trace replicas in the same way, one after the other, if their shapes differ.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any, final

import greenlet
import jax

from replicax._jax import ThreadSettings, at_trace, trace_state
from replicax._recording import Recorded, followed, innermost_but_recordings
from replicax.contexts import (
    Exchange,
    Padding,
    ReplicaContext,
    StrategyProtocol,
    current,
    enter,
)
from replicax.errors import ContextError, TracingError
from replicax.values import flatten, regroup, regroup_traced, split
from replicax.variables import Variable

__all__ = ["run_replicas"]

_Regroup = Callable[[Sequence[Any], Any], Any]


def run_replicas(
    strategy: StrategyProtocol,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    replica_ids: Sequence[Any],
    *,
    padding: Padding | None = None,
    traced: bool = False,
) -> Any:
    """Call `fn` once per replica, taking turns; return the merged results.

    `padding` has the masks of padded arguments. If `traced`, the results are tracers of a compiled step.
    """
    base = _Base(padding, traced)
    team: list[_Replica] = []
    arguments = split((args, kwargs), len(replica_ids))
    for index, (replica_id, own) in enumerate(zip(replica_ids, arguments, strict=True)):
        team.append(_Replica(strategy, index, replica_id, (fn, *own), base))
    try:
        return _take_turns(strategy, team, regroup_traced if traced else regroup)
    except BaseException as error:
        for replica in team:
            replica.cancel(error)
        raise
    finally:
        base.settings.restore()


def _take_turns(strategy: StrategyProtocol, team: list[_Replica], merge: _Regroup) -> Any:
    replies: list[Any] = [None] * len(team)
    while True:
        for replica, reply in zip(team, replies, strict=True):
            replica.resume(reply)
        waiting = [replica for replica in team if replica.request is not None]
        if not waiting:
            return merge([replica.result for replica in team], strategy.mesh)
        if len(waiting) < len(team):
            raise ContextError(_different_counts(team, waiting))
        replies = _merge(strategy, team, merge)


def _different_counts(team: list[_Replica], waiting: list[_Replica]) -> str:
    at = ", ".join(str(replica.local_index) for replica in waiting)
    done = ", ".join(str(r.local_index) for r in team if r not in waiting)
    return (
        f"Replicas made different numbers of merge_calls: replica {at} is waiting in one, but replica "
        f"{done} has returned. all_reduce, all_gather and writing a variable with an aggregation are "
        "merge_calls too; every replica must make the same ones, in the same order."
    )


def _merge(strategy: StrategyProtocol, team: list[_Replica], merge: _Regroup) -> list[Any]:
    """Call the merge function; returns a value, or an exception, for each replica."""
    requests = [replica.take_request() for replica in team]
    merge_fn = requests[0][0]
    try:
        _check_same_place([request[0] for request in requests])
        args, kwargs = merge([request[1:] for request in requests], strategy.mesh)
        with enter(current().inner(strategy)):
            result = merge_fn(strategy, *args, **kwargs)
        return split(result, len(team))
    except Exception as error:
        return [_Failure(error)] * len(team)


def _check_same_place(merge_fns: list[Callable[..., Any]]) -> None:
    """Raise if one replica reduces while another gathers, or if they write different variables.

    The user's own merge functions may differ: then the first replica's is called, as in TensorFlow.
    """
    places = [_place(merge_fn) for merge_fn in merge_fns]
    for replica, place in enumerate(places):
        if place is not places[0]:
            raise ContextError(
                f"The replicas wait for each other in different calls: replica 0 is in "
                f"{_describe(places[0])}, replica {replica} in {_describe(place)}. Every replica must make "
                "the same all_reduce, all_gather and merge_call calls, and writes of variables with an "
                "aggregation, in the same order."
            )


def _place(merge_fn: Callable[..., Any]) -> Any:
    """What one of Replicax's own merge_calls does: the variable that it writes, or the collective."""
    owner = getattr(merge_fn, "__self__", None)
    if isinstance(owner, Exchange):
        return type(owner)
    return owner if isinstance(owner, Variable) else None


def _describe(place: Any) -> str:
    if isinstance(place, Variable):
        return f"a write of the variable {place.name!r}"
    return "a merge_call" if place is None else place.name


def _check_not_recorded(structure: Any) -> None:
    """Raise if an open tape records one of the values."""
    if any(isinstance(followed(leaf), Recorded) for leaf in flatten(structure)[0]):
        raise TracingError(
            "merge_call in the block of a GradientTape got a value that the tape records, in an eager "
            "replica: gradients do not pass through a merge_call. all_reduce and all_gather are "
            "differentiable. Otherwise call it after the block, or compile the step with `rx.function`."
        )


@final
class _Failure:
    """An exception to raise in the replicas, so that a `try` around the merge_call can catch it."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@final
class _Base:
    """What the replicas of one run share: initial settings, padding, and the variables they create."""

    def __init__(self, padding: Padding | None, traced: bool) -> None:
        self.padding, self.traced = padding, traced
        self.settings = ThreadSettings()
        self.trace = trace_state.value
        self.created: list[Any] = []


@final
class _Replica:
    """One eager replica, and its merge point."""

    def __init__(
        self, strategy: StrategyProtocol, index: int, replica_id: Any, call: Any, base: _Base
    ) -> None:
        self.local_index = index
        self.alike = False
        self.base_trace = base.trace
        self.request: Any = None
        self.result: Any = None
        self._base = base
        self._num_created = 0
        self._cancelled = False
        self._strategy, self._replica_id, self._call = strategy, replica_id, call
        self._greenlet = greenlet.greenlet(self._main)
        self._greenlet.gr_context = contextvars.copy_context()

    def _main(self, _: Any) -> None:
        fn, args, kwargs = self._call
        names, device = self._place()
        padding = self._base.padding
        context = ReplicaContext(
            self._strategy,
            self._replica_id,
            merge_point=self,
            devices=names,
            examples=padding and padding.examples(mask.select(self.local_index) for mask in padding.masks),
        )
        with enter(current().inner(self._strategy, context)), jax.default_device(device):
            self.result = fn(*args, **kwargs)

    def _place(self) -> tuple[tuple[str, ...], Any]:
        """The names of the replica's devices, and the device for eager code.

        A program contains the replicas of all processes; other processes' are traced on a local device.
        """
        mesh, index = self._strategy.mesh, self.local_index
        replica = index if self._base.traced else mesh.local_replica_ids[index]
        local = replica in mesh.local_replica_ids
        return mesh.device_names[replica], mesh.replica_devices[replica][
            0
        ] if local else mesh.local_devices[0]

    def resume(self, reply: Any) -> None:
        """Run until the next merge_call or the end."""
        if isinstance(reply, _Failure):
            error = reply.error
            self._greenlet.throw(type(error), error, error.__traceback__)
        else:
            self._greenlet.switch(reply)

    def take_request(self) -> Any:
        request, self.request = self.request, None
        return request

    def cancel(self, cause: BaseException) -> None:
        """Stop a waiting replica because of `cause`; its `finally` blocks run."""
        self._cancelled = True
        try:
            if self._greenlet and not self._greenlet.dead:
                self._greenlet.throw()
        except Exception as error:
            cause.add_note(
                f"Replica {self.local_index} raised {error!r} when it was stopped because of this error."
            )

    # The merge point.

    def merge_call(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Wait until all replicas have reached this merge_call."""
        if self._cancelled:
            raise ContextError(
                "merge_call was called in a replica that is being stopped, because another replica failed."
            )
        if greenlet.getcurrent() is not self._greenlet:
            raise ContextError(
                f"The ReplicaContext of replica {self.local_index} was used outside of that replica: after "
                "it had returned, in another replica or in another thread. Call rx.get_replica_context() "
                "where you need it, but not in a function whose trace JAX caches (jax.jit, "
                "jax.checkpoint), unless the step is compiled with `rx.function`."
            )
        if innermost_but_recordings() is not self.base_trace:
            raise TracingError(
                "merge_call (or writing a variable with an aggregation) was called inside a function that "
                "JAX differentiates, maps or compiles, in an eager replica: replicas can't wait for each "
                "other in the middle of a trace. all_reduce and all_gather are differentiable. Otherwise "
                "call it outside of jax.grad, or compile the step with `rx.function`."
            )
        _check_not_recorded((args, kwargs))
        settings = ThreadSettings()
        self.request = (merge_fn, args, kwargs)
        self._base.settings.restore()
        try:
            with at_trace(self.base_trace):
                return self._caller().switch()
        finally:
            settings.restore()

    def _caller(self) -> greenlet.greenlet:
        parent = self._greenlet.parent
        assert parent is not None
        return parent

    def create(self, make: Callable[[], Any]) -> Any:
        """Create a variable once for all replicas: their n-th variables are the same."""
        created, index = self._base.created, self._num_created
        self._num_created += 1
        if index == len(created):
            created.append(make())
        return created[index]
