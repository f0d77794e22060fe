"""How notebooks show a distributed value: a table with one row per replica."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from replicax._html import MOST_ROWS, more, shown, table
from replicax.topology import ReplicaMesh

__all__ = ["components_table", "one_row"]


def components_table(title: str, components: Sequence[Any], mesh: ReplicaMesh | None) -> str:
    """The components of this process's replicas."""
    places = _places(mesh, len(components))
    pairs = zip(places[:MOST_ROWS], components, strict=False)
    rows = [(*map(html.escape, place), shown(component)) for place, component in pairs]
    rest = more(len(components))
    return table(title, [*rows, (rest,)] if rest else rows, ("replica", "device", "value"))


def one_row(title: str, what: str, value: Any) -> str:
    """A value without components here, such as one in a program being traced."""
    return table(title, [(html.escape(what), shown(value))])


def _places(mesh: ReplicaMesh | None, count: int) -> list[tuple[str, str]]:
    """The number and the devices of each local replica."""
    if mesh is None or len(mesh.local_replica_ids) != count:
        return [(str(i), "") for i in range(count)]
    return [(str(i), " ".join(mesh.device_names[i])) for i in mesh.local_replica_ids]
