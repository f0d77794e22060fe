"""Small HTML tables, which notebooks show in place of a `repr`.

Everything is escaped. Large arrays are described by dtype, shape and size: a table never computes anything,
and never copies large arrays to the host.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_tracer
from replicax._messages import brief, size_text

__all__ = ["MOST_ROWS", "boxes", "describe_array", "more", "plain", "shown", "table"]

MOST_ROWS = 16
"""The most rows of a table, or boxes of a row, that are shown."""
_MOST_ELEMENTS = 8
_MOST_CHARACTERS = 100
_MOST_PRINTED = 1000
_BOX = "border:1px solid;border-radius:4px;padding:0 .4em;margin:.1em;display:inline-block"
_CELL = "text-align:left;padding:.1em .6em"


def table(title: str, rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """A table with a title. The cells are HTML; the title and the header are text."""
    lines = [_row("th", map(html.escape, header))] if header else []
    lines += [_row("td", row) for row in rows]
    return f"<div><b>{html.escape(title)}</b><table>{''.join(lines)}</table></div>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{cell}</{tag}>' for cell in cells) + "</tr>"


def boxes(names: Iterable[str]) -> str:
    """A row of boxes, one for each name."""
    return "".join(f'<span style="{_BOX}">{html.escape(name)}</span>' for name in names)


def more(total: int) -> str:
    """The note that follows the first `MOST_ROWS` of `total` items."""
    return f"and {total - MOST_ROWS} more" if total > MOST_ROWS else ""


def shown(value: Any) -> str:
    """A value as HTML: small arrays with their elements, large ones without."""
    if isinstance(value, jax.Array | np.ndarray):
        return html.escape(_array_text(value))
    text = brief(value)
    return html.escape(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}...")


def _array_text(array: Any) -> str:
    if is_tracer(array):
        return f"{describe_array(array.shape, array.dtype)}, traced"
    here = not isinstance(array, jax.Array) or (array.is_fully_addressable and not array.is_deleted())
    if array.size > _MOST_ELEMENTS or not here or _is_key(array):
        return describe_array(array.shape, array.dtype)
    elements = np.array2string(np.asarray(array), precision=4, separator=", ")
    return f"{' '.join(elements.split())} {array.dtype}"


def _is_key(array: Any) -> bool:
    return isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def describe_array(shape: Sequence[int], dtype: Any) -> str:
    """The dtype, shape and size of an array.

    >>> from replicax._html import describe_array
    >>> describe_array((512, 256), np.dtype("float32"))
    'float32[512,256], 512.0 KiB'
    """
    size = size_text(int(np.prod(shape)) * np.dtype(dtype).itemsize) if isinstance(dtype, np.dtype) else ""
    return f"{dtype}[{','.join(map(str, shape))}]" + (f", {size}" if size else "")


def plain(value: Any, name: str, arrays: Sequence[Any]) -> str:
    """The plain-text alternative to a table: a `repr`, unless that would copy large arrays to the host."""
    if sum(int(np.prod(array.shape)) for array in arrays) <= _MOST_PRINTED:
        return repr(value)
    kinds = dict.fromkeys(describe_array(array.shape, array.dtype) for array in arrays)
    return f"<{name}: {'; '.join(list(kinds)[:MOST_ROWS])}>"
