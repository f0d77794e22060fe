"""What a compiled step exchanges with parameter servers: values before it runs, writes afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

from replicax.execution._lookups import Lookups
from replicax.variables import Sending, Servers, Variable

__all__ = ["Mail", "fetcher"]


@final
class Mail:
    """The parcels that a step sends to servers after it has run."""

    def __init__(self) -> None:
        self.num_arrays = 0
        self._parcels: list[tuple[Servers, Any, int]] = []

    def pack(self, sendings: Sequence[Sending]) -> list[Any]:
        """The arrays that the program returns for the servers; called while the step is traced."""
        self._parcels, packed = [], list[Any]()
        for servers in dict.fromkeys(sending.servers for sending in sendings):
            own = [sending for sending in sendings if sending.servers is servers]
            arrays, parcel = servers.pack(own)
            self._parcels.append((servers, parcel, len(arrays)))
            packed += arrays
        self.num_arrays = len(packed)
        return packed

    def sending(self, rebuild: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """`rebuild`, which builds a step's result, extended to send the parcels too."""
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


def fetcher(
    variables: Iterable[Variable], lookups: Lookups | None
) -> Callable[[list[Any]], list[Any]] | None:
    """A function that fetches what a step needs from servers; None if it needs nothing.

    The function takes the step's arguments, stores the fetched values of `variables`, and returns more
    arguments: the rows that the step looks up.
    """
    away: dict[Servers, list[Variable]] = {}
    tables = [] if lookups is None else lookups.variables
    for variable in variables:
        if variable.layout.servers is not None:
            away.setdefault(variable.layout.servers, []).append(variable)
    for table in tables:
        assert table.layout.servers is not None
        away.setdefault(table.layout.servers, [])

    def fetch(arguments: list[Any]) -> list[Any]:
        if lookups is None:
            for servers, own in away.items():
                servers.pull(own)
            return []
        return lookups.arrays(_pull_with_rows(away, tables, lookups.numbers(arguments)))

    return fetch if away else None


def _pull_with_rows(
    away: Mapping[Servers, Sequence[Variable]], tables: Sequence[Variable], numbers: Sequence[Any]
) -> list[Any]:
    """Fetch variables and rows, with one message to each server."""
    found: list[Any] = [None] * len(tables)
    for servers, own in away.items():
        places = [i for i, table in enumerate(tables) if table.layout.servers is servers]
        rows = servers.pull(own, [(tables[i], numbers[i]) for i in places])
        for i, pair in zip(places, rows, strict=True):
            found[i] = pair
    return found
