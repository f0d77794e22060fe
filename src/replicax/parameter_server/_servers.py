"""The parameter servers as one process of the cluster sees them: pulls, pushes and references."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
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
from replicax.parameter_server._packing import Packing
from replicax.parameter_server._parcels import Parcel, make_parcel
from replicax.parameter_server._placement import Placement, placement_of
from replicax.parameter_server._plans import ServerOptimizer
from replicax.parameter_server._separable import check_separable
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
        record: for the coordinator, the function that remembers what a server that fails is told again.
    """

    def __init__(
        self,
        cluster: str,
        handles: Sequence[ServerHandle],
        requests_build: Callable[[Any, Any], None] | None = None,
        record: Callable[[int, str, Any], None] | None = None,
    ) -> None:
        self.cluster = cluster
        self._handles = list(handles)
        self._requests_build = requests_build
        self._lock = threading.RLock()
        self._pulls: dict[tuple[str, ...], _Pull] = {}
        self._pushes: list[tuple[Call, Any]] = []
        self._versions = [0] * len(handles)
        self.bytes_pulled = self.bytes_pushed = 0
        self._record = record
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
        """Tell a server something that it must not forget."""
        if self._record is not None:
            self._record(server, method, arguments)
        self._handles[server].call(method, *arguments).result()

    def remove(self, placement: Placement) -> None:
        """Remove a variable, with the next pull: the garbage collector calls this, so it must not block."""
        self._removed.append(placement)

    def _remove_all(self) -> None:
        while self._removed:
            placement = self._removed.popleft()
            for part in placement.parts:
                self._handles[part.server].call("remove", [placement.key])

    # Reading.

    def pull(self, variables: Sequence[Variable]) -> None:
        with self._lock:
            self._remove_all()
            keys = tuple(placement_of(variable).key for variable in variables)
            if keys not in self._pulls:
                self._pulls[keys] = _Pull(variables)
            request = self._pulls[keys]
            calls = [self._handles[i].call("pull", request.number) for i in request.servers]
            buffers = []
            for i, call in zip(request.servers, calls, strict=True):
                self._versions[i], own = call.result(lambda i=i: self._register_request(request, i))
                buffers.append(own)
                self.bytes_pulled += sum(buffer.nbytes for buffer in own)
            stores = {variable._store for variable in variables}
            (store,) = stores
            with store.exclusive():
                for variable, array in zip(variables, request.join(buffers), strict=True):
                    store.replace(variable._place, array)

    def _register_request(self, request: _Pull, server: int) -> None:
        arguments = request.number, request.keys_on(server), request.packings[server]
        self._handles[server].call("register_request", *arguments).result()

    # Writing.

    def pack(self, sendings: Sequence[Sending]) -> tuple[list[Any], Parcel]:
        return make_parcel(sendings)

    def push(self, parcel: Parcel, arrays: Sequence[Any], *, wait: bool = False) -> None:
        host = [np.asarray(array) for array in arrays]
        with self._lock:
            for server, buffers, rows in parcel.messages(host):
                self.bytes_pushed += sum(x.nbytes for x in (*buffers, *(y for pair in rows for y in pair)))
                call = self._handles[server].call(
                    "push", parcel.number, buffers, rows, self._versions[server]
                )
                self._pushes.append((call, lambda server=server: self._register_plan(parcel, server)))
            if wait:
                self.settle()

    def _register_plan(self, parcel: Parcel, server: int) -> None:
        self._handles[server].call("register_plan", parcel.number, parcel.plans[server]).result()

    def settle(self) -> None:
        """Wait until the servers have done all that was sent."""
        with self._lock:
            pushes, self._pushes = self._pushes, []
            for call, tell in pushes:
                call.result(tell)

    # Optimizers.

    @property
    def builds_elsewhere(self) -> bool:
        """Whether the coordinator, another process, creates the slots of optimizers."""
        return self._requests_build is not None

    def request_build(self, optimizer: Any, variables: Any) -> None:
        """Ask the coordinator to build an optimizer, and wait until it has."""
        assert self._requests_build is not None
        self._requests_build(optimizer, variables)

    def check_updates(
        self, optimizer: Any, parameters: Any, state_structure: Any, state: Any, owners: Any
    ) -> None:
        """Raise unless each server can compute its part of the updates of an optimizer."""
        if optimizer.loss_scale is not None:
            raise VariableError(
                "rx.Optimizer(loss_scale=...) can't be used with parameter servers, which see gradients "
                "of one part of the variables only. Compute in bfloat16, which needs no loss scale."
            )
        check_separable(optimizer, parameters, state_structure, state, owners)

    def register_optimizer(self, optimizer: Any, variables: Sequence[Variable]) -> None:
        """Tell the servers how to apply gradients."""
        keys, slot_keys = ([placement_of(v).key for v in own] for own in (variables, optimizer.slots))
        absent = {placement_of(v).key: _stand_in(v) for v in (*variables, *optimizer.slots)}
        told = ServerOptimizer(optimizer.computation, tuple(keys), tuple(slot_keys), absent)
        key = _references.optimizer_key(optimizer)
        for server in range(len(self)):
            self._tell(server, "register_optimizer", key, told)

    def apply_gradients(
        self, optimizer: Any, variables: Sequence[Variable], gradients: Sequence[Any]
    ) -> None:
        """Send gradients, one for each variable, to the servers."""
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
        """How an optimizer is pickled; `variables` are those it has slots for."""
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


def _plain(value: Any) -> Any:
    return jnp.asarray(value.whole if isinstance(value, Mirrored) else value)


@final
class _Pull:
    """Variables that are pulled together: what each server sends, and how the values are put together."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._parts: dict[int, list[tuple[str, tuple[int, ...], Any]]] = {}
        places: list[list[tuple[int, int]]] = []
        for variable in variables:
            placement, own = placement_of(variable), []
            for part in placement.to_read:
                shape = (part.stop - part.start, *variable.shape[1:]) if variable.shape else ()
                there = self._parts.setdefault(part.server, [])
                own.append((part.server, len(there)))
                there.append((placement.key, shape, variable.dtype))
            places.append(own)
        self.servers = sorted(self._parts)
        self.number = hashlib.sha256(repr(self._parts).encode()).hexdigest()
        self.packings = {i: Packing([entry[1:] for entry in self._parts[i]]) for i in self.servers}

        def join(buffers: list[list[Any]]) -> list[Any]:
            parts = {i: self.packings[i].unpack(own) for i, own in zip(self.servers, buffers, strict=True)}
            found = [[parts[server][n] for server, n in own] for own in places]
            return [own[0] if len(own) == 1 else jnp.concatenate(own) for own in found]

        mesh = variables[0].mesh
        assert mesh is not None
        self.join = jax.jit(join, out_shardings=mesh.replicated)

    def keys_on(self, server: int) -> list[str]:
        """What a server sends."""
        return [key for key, *_ in self._parts[server]]
