"""The parameter servers as one process of the cluster sees them: pulls, pushes and references."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.contexts import current
from replicax.errors import VariableError
from replicax.parameter_server import _references
from replicax.parameter_server._handles import Call, ServerHandle
from replicax.parameter_server._parcels import Parcel, make_parcel
from replicax.parameter_server._placement import Placement, placement_of
from replicax.parameter_server._plans import ServerOptimizer
from replicax.parameter_server._pulls import Pull, Request
from replicax.parameter_server._row_updates import updated_by_rows
from replicax.parameter_server._rows import RowsToPull
from replicax.parameter_server._separable import check_separable
from replicax.training import Transformation
from replicax.values import IndexedSlices, Mirrored
from replicax.variables import Sending, Servers, Variable, VariableSpec

__all__ = ["RayServers"]


@final
class RayServers(Servers):
    """The servers of a cluster.

    Args:
        cluster: the id of the cluster.
        handles: the servers.
        requests_build: for a worker, the function that asks the coordinator to build an optimizer.
        tell: for the coordinator, the function that calls a method of a server, and of its replacements.
    """

    def __init__(
        self,
        cluster: str,
        handles: Sequence[ServerHandle],
        requests_build: Callable[[Any, Any], None] | None = None,
        tell: Callable[..., Call] | None = None,
    ) -> None:
        self.cluster = cluster
        self._handles = list(handles)
        self._requests_build = requests_build
        self._lock = threading.RLock()
        self._requests: dict[tuple[str, ...], Request] = {}
        self._pushes: list[tuple[Call, Any]] = []
        self._versions = [0] * len(handles)
        self._call_for_good = tell or self._call
        self._removed: collections.deque[Placement] = collections.deque()

    def __len__(self) -> int:
        return len(self._handles)

    # Creating.

    def create(self, spec: VariableSpec, placement: Placement, value: Any) -> None:
        whole = np.asarray(value)
        for part in placement.parts:
            rows = whole[part.start : part.stop] if placement.is_divided else whole
            self._tell(part.server, "create", {placement.key: rows})

    def _tell(self, server: int, method: str, *arguments: Any) -> None:
        """Tell a server something that its replacements must know, too."""
        self._call_for_good(server, method, *arguments).result()

    def _call(self, server: int, method: str, *arguments: Any) -> Call:
        return self._handles[server].call(method, *arguments)

    def remove(self, placement: Placement) -> None:
        """Remove a variable, with the next pull: the garbage collector calls this, so it must not block."""
        self._removed.append(placement)

    def _remove_all(self) -> None:
        while self._removed:
            placement = self._removed.popleft()
            for part in placement.parts:
                self._handles[part.server].call("remove", [placement.key])

    # Reading.

    def pull(
        self, variables: Sequence[Variable], lookups: Sequence[tuple[Variable, np.ndarray]] = ()
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        rows = [RowsToPull(variable, numbers) for variable, numbers in lookups]
        with self._lock:
            self._remove_all()
            request = self._request(variables)
            pull = Pull(request, rows)
            calls = {i: self._handles[i].call("pull", *pull.message(i)) for i in pull.servers}
            for i, call in calls.items():
                self._versions[i], *answer = call.result(lambda i=i: self._register_request(request, i))
                pull.receive(i, *answer)
            return pull.finish(variables)

    def _request(self, variables: Sequence[Variable]) -> Request:
        keys = tuple(placement_of(variable).key for variable in variables)
        if keys not in self._requests:
            self._requests[keys] = Request(variables)
        return self._requests[keys]

    def _register_request(self, request: Request, server: int) -> None:
        arguments = request.number, request.keys_on(server), request.packings[server]
        self._handles[server].call("register_request", *arguments).result()

    # Writing.

    def pack(self, sendings: Sequence[Sending]) -> tuple[list[Any], Parcel]:
        return make_parcel(sendings)

    def push(self, parcel: Parcel, arrays: Sequence[Any], *, wait: bool = False) -> None:
        host = [np.asarray(array) for array in arrays]
        with self._lock:
            for server, buffers, rows in parcel.messages(host):
                call = self._handles[server].call(
                    "push", parcel.number, buffers, rows, self._versions[server]
                )
                self._pushes.append((call, lambda server=server: self._register_plan(parcel, server)))
            if wait:
                self.wait_for_pushes()

    def _register_plan(self, parcel: Parcel, server: int) -> None:
        self._handles[server].call("register_plan", parcel.number, parcel.plans[server]).result()

    def wait_for_pushes(self) -> None:
        """Wait until the servers have applied everything that was sent."""
        with self._lock:
            pushes, self._pushes = self._pushes, []
            for call, tell in pushes:
                call.result(tell)

    # Optimizers.

    @property
    def builds_elsewhere(self) -> bool:
        return self._requests_build is not None

    def request_build(self, optimizer: Any, variables: Any) -> None:
        assert self._requests_build is not None
        self._requests_build(optimizer, variables)

    def check_updates(
        self, optimizer: Any, parameters: Any, state_structure: Any, state: Any, owners: Any
    ) -> None:
        if optimizer.loss_scale is not None:
            raise VariableError(
                "rx.Optimizer(loss_scale=...) can't be used with parameter servers, because each sees only "
                "some of the gradients. Compute in bfloat16, which needs no loss scale."
            )
        variables = parameters.variables
        constraints = [variable.constraint for variable in variables]
        computation = Transformation(
            optimizer._transformation, parameters.structure, state_structure, constraints
        )
        check_separable(optimizer, computation, variables, [leaf for _, leaf in state], owners)

    def check_computation(
        self,
        optimizer: Any,
        computation: Callable[..., Any],
        variables: Sequence[Variable],
        slots: Sequence[Variable],
        owners: Sequence[Variable | None],
    ) -> None:
        """Raise unless each server can compute its part of an update."""
        shapes = [jax.ShapeDtypeStruct(slot.shape, slot.dtype) for slot in slots]
        check_separable(optimizer, computation, variables, shapes, owners)

    def register_optimizer(self, optimizer: Any, variables: Sequence[Variable]) -> None:
        keys, slot_keys = ([placement_of(v).key for v in own] for own in (variables, optimizer.slots))
        absent = {placement_of(v).key: _stand_in(v) for v in (*variables, *optimizer.slots)}
        owners = _owners(optimizer.slots, variables)
        by_rows = updated_by_rows(optimizer.computation, variables, optimizer.slots, owners)
        told = ServerOptimizer(
            optimizer.computation, tuple(keys), tuple(slot_keys), absent, owners, by_rows
        )
        key = _references.optimizer_key(optimizer)
        for server in range(len(self)):
            self._tell(server, "register_optimizer", key, told)

    def apply_gradients(
        self, optimizer: Any, variables: Sequence[Variable], gradients: Sequence[Any]
    ) -> None:
        frame, key = current().frame, _references.optimizer_key(optimizer)
        arrays, kinds = [], []
        for gradient in gradients:
            rows = isinstance(gradient, IndexedSlices)
            kinds.append(rows)
            arrays += [_plain(gradient.values), _plain(gradient.indices)] if rows else [_plain(gradient)]
        counter = optimizer.iterations
        frame.send(Sending(self, (key, tuple(variables), tuple(kinds), counter), arrays))

    # Others.

    def reference(self, variable: Variable) -> Any:
        spec = dataclasses.replace(variable._spec, slot_of=())
        return _references.load_variable, (self.cluster, spec, placement_of(variable))

    def optimizer_reference(self, optimizer: Any, variables: Any) -> Any:
        key = _references.optimizer_key(optimizer)
        _references.member(self.cluster).optimizers[key] = optimizer
        return _references.load_optimizer, (self.cluster, key, optimizer.arguments, variables)

    def statistics(self) -> list[dict[str, Any]]:
        """What each server counts; see `ParameterServer.statistics`."""
        calls = [handle.call("statistics") for handle in self._handles]
        return [call.result() for call in calls]


def _stand_in(variable: Variable) -> jax.ShapeDtypeStruct:
    """Stands for a variable that a server does not have: no rows, but as many axes."""
    shape = (0, *variable.shape[1:]) if variable.shape else ()
    return jax.ShapeDtypeStruct(shape, variable.dtype)


def _owners(slots: Sequence[Variable], variables: Sequence[Variable]) -> tuple[int | None, ...]:
    """For each slot, the number of the variable that it matches element by element, or None."""
    numbers = {variable.ref(): i for i, variable in enumerate(variables)}

    def owner(slot: Variable) -> int | None:
        of = slot._spec.slot_of
        return numbers[of[0].ref()] if len(of) == 1 and of[0].shape == slot.shape else None

    return tuple(map(owner, slots))


def _plain(value: Any) -> Any:
    return jnp.asarray(value.whole if isinstance(value, Mirrored) else value)
