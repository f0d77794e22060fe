"""How notebooks show a strategy: a box for each replica, with its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax._html import MOST_ROWS, boxes, more, table

if TYPE_CHECKING:
    from replicax.strategies._strategy import StrategyBase

__all__ = ["strategy_table"]


def strategy_table(strategy: StrategyBase) -> str:
    mesh = strategy.mesh
    rows = [
        (process, boxes(names[:MOST_ROWS]) + more(len(names))) for process, names in _processes(strategy)
    ]
    count = f"{mesh.num_replicas} replica{'s' if mesh.num_replicas > 1 else ''}"
    if len(mesh.processes) > 1:
        count += f" in {len(mesh.processes)} processes"
    rest = more(len(rows))
    return table(f"{type(strategy).__name__}: {count}", [*rows[:MOST_ROWS], *([(rest,)] if rest else [])])


def _processes(strategy: StrategyBase) -> list[tuple[str, list[str]]]:
    """The processes, each with the devices of its replicas."""
    mesh = strategy.mesh
    pairs = list(zip(mesh.replica_devices, mesh.device_names, strict=True))
    return [
        (f"process {process}", [" ".join(names) for row, names in pairs if row[0].process_index == process])
        for process in mesh.processes
    ]
