"""How notebooks show a variable: what it is, where it is placed and, if it is small, its value."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from replicax._html import MOST_ROWS, boxes, describe_array, more, shown, table
from replicax.contexts import current
from replicax.topology import device_name

if TYPE_CHECKING:
    from replicax.variables._variable import Variable

__all__ = ["variable_table"]

_LARGEST = 8  # values with more elements are not read


def variable_table(variable: Variable) -> str:
    policy = f"{variable.synchronization.name}, {variable.aggregation.name}"
    rows = [
        ("array", html.escape(describe_array(variable.shape, variable.dtype))),
        ("synchronization, aggregation", policy),
        ("trainable", str(variable.trainable)),
        ("placed", _places(variable)),
        *_value_rows(variable),
    ]
    return table(f"{variable.layout.type_name} {variable.name!r}", rows)


def _places(variable: Variable) -> str:
    layout, mesh = variable.layout, variable.mesh
    if mesh is None or not layout.on_mesh:
        return boxes([device_name(layout.device)]) if layout.device is not None else ""
    names = [" ".join(devices) for devices in mesh.device_names]
    what = "each has its own part" if layout.differs else "each has a copy"
    if not layout.has_copies:
        what = "sharded over them"
    return f"{boxes(names[:MOST_ROWS])} {more(len(names))} {what}"


def _value_rows(variable: Variable) -> list[tuple[str, str]]:
    if variable.size > _LARGEST or not current().frame.is_eager or not _is_here(variable):
        return []
    try:
        if variable.layout.differs and not _in_its_replica(variable):
            copies = variable.copies[:MOST_ROWS]
            return [(html.escape(copy.name), shown(copy.read_value())) for copy in copies]
        return [("value", shown(variable.read_value()))]
    except Exception as error:  # a table must not raise; see `describe`
        return [("value", f"unreadable here: {type(error).__name__}")]


def _in_its_replica(variable: Variable) -> bool:
    here = current()
    return here.replica is not None and here.strategy is variable.distribute_strategy


def _is_here(variable: Any) -> bool:
    """Whether it can be read without communicating with other processes."""
    mesh = variable.mesh
    local = mesh is None or mesh.is_local or variable.layout.has_copies
    return local and variable.layout.servers is None
