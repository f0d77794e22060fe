"""What a compiled step exchanges with parameter servers: values before it runs, writes after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from replicax.variables import Sending, Servers, Variable

__all__ = ["Mail", "fetcher"]


@final
class Mail:
    """The parcels that a step sends to servers when it has run."""

    def __init__(self) -> None:
        self.num_arrays = 0
        self._parcels: list[tuple[Servers, Any, int]] = []

    def pack(self, sendings: Sequence[Sending]) -> list[Any]:
        """The arrays that the program returns for the servers; traced with the step."""
        self._parcels, packed = [], list[Any]()
        for servers in dict.fromkeys(sending.servers for sending in sendings):
            own = [sending for sending in sendings if sending.servers is servers]
            arrays, parcel = servers.pack(own)
            self._parcels.append((servers, parcel, len(arrays)))
            packed += arrays
        self.num_arrays = len(packed)
        return packed

    def sending(self, rebuild: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """`rebuild`, the function that makes a step's result, which also sends the parcels."""
        if not self._parcels:
            return rebuild
        parcels, count = self._parcels, self.num_arrays

        def send_and_rebuild(arrays: list[Any]) -> Any:
            start = len(arrays) - count
            rest = iter(arrays[start:])
            for servers, parcel, size in parcels:
                servers.push(parcel, [next(rest) for _ in range(size)])
            return rebuild(arrays[:start])

        return send_and_rebuild


def fetcher(variables: Iterable[Variable]) -> Callable[[], None] | None:
    """Fetches the current values of those `variables` that are on servers; None if there are none."""
    away: dict[Servers, list[Variable]] = {}
    for variable in variables:
        if variable.layout.servers is not None:
            away.setdefault(variable.layout.servers, []).append(variable)

    def fetch() -> None:
        for servers, own in away.items():
            servers.pull(own)

    return fetch if away else None
