"""What is fetched from the servers before a step: whole variables, and rows of others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax.parameter_server._packing import Packing
from replicax.parameter_server._placement import placement_of
from replicax.parameter_server._rows import RowsToPull
from replicax.variables import Variable

__all__ = ["Pull", "Request"]


@final
class Request:
    """Variables that are fetched together: what each server sends, and how to assemble the values."""

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

        def join(buffers: dict[int, list[Any]]) -> list[Any]:
            parts = {i: self.packings[i].unpack(own) for i, own in buffers.items()}
            found = [[parts[server][n] for server, n in own] for own in places]
            return [own[0] if len(own) == 1 else jnp.concatenate(own) for own in found]

        self._join = jax.jit(join)
        mesh = variables[0].mesh if variables else None
        self._sharding = None if mesh is None else mesh.replicated

    def join(self, buffers: dict[int, list[np.ndarray]]) -> list[Any]:
        """The values of the variables; large ones share the memory of their buffers, if they can."""
        return self._join(jax.device_put(buffers, self._sharding))

    def keys_on(self, server: int) -> list[str]:
        """What a server sends."""
        return [key for key, *_ in self._parts[server]]


@final
class Pull:
    """One message to each server, and what they answer.

    Args:
        request: the variables to fetch as a whole.
        rows: the rows of others.
    """

    def __init__(self, request: Request, rows: Sequence[RowsToPull]) -> None:
        self._request, self._rows = request, rows
        self._buffers: dict[int, list[np.ndarray]] = {}
        self._found = [dict[int, np.ndarray]() for _ in rows]

    @property
    def servers(self) -> list[int]:
        """Those that have some of it."""
        return sorted({*self._request.servers, *(i for own in self._rows for i in own.on_server)})

    def message(self, server: int) -> tuple[str | None, list[tuple[str, np.ndarray]]]:
        """What to ask a server for: the number of the request, if it has a part in it, and rows."""
        number = self._request.number if server in self._request.servers else None
        return number, [(own.key, own.on_server[server]) for own in self._rows if server in own.on_server]

    def receive(self, server: int, buffers: list[np.ndarray], rows: list[np.ndarray]) -> None:
        """A server has answered."""
        if server in self._request.servers:
            self._buffers[server] = buffers
        asked = [i for i, own in enumerate(self._rows) if server in own.on_server]
        for i, found in zip(asked, rows, strict=True):
            self._found[i][server] = found

    def finish(self, variables: Sequence[Variable]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Store the values of the variables; returns the numbers of the rows and the rows."""
        if variables:
            (store,) = {variable._store for variable in variables}
            with store.exclusive():
                for variable, array in zip(variables, self._request.join(self._buffers), strict=True):
                    store.replace(variable._place, array)
        both = zip(self._rows, self._found, strict=True)
        return [(own.numbers, own.joined(found)) for own, found in both]
