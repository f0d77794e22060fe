"""Times, bars and tables as text."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

__all__ = ["bar", "table", "time_text"]

_EIGHTHS = " ▏▎▍▌▋▊▉"


def time_text(seconds: float) -> str:
    """A time in a suitable unit.

    >>> from replicax._text import time_text
    >>> time_text(0.0000123), time_text(0.00231), time_text(61.5)
    ('12 µs', '2.31 ms', '61.50 s')
    """
    if seconds < 0.9995e-3:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.2f} ms" if seconds < 0.99995 else f"{seconds:.2f} s"


def bar(share: float, width: int = 30) -> str:
    """A horizontal bar that fills a share of the width.

    >>> from replicax._text import bar
    >>> bar(0.33, 10), bar(0, 10)
    ('███▎      ', '          ')
    """
    whole, rest = divmod(round(8 * width * min(max(share, 0.0), 1.0)), 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)


def table(title: str, rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """Rows under a title; the columns in `numbers` are right-aligned, and short rows are padded.

    >>> from replicax._text import table
    >>> print(table("sizes", [("a", "10"), ("bcd", "2")], numbers=[1]))
    sizes
      a     10
      bcd    2
    """
    cells = list(itertools.zip_longest(*rows, fillvalue=""))
    widths = [max(map(len, column)) for column in cells]
    lines = [
        "   ".join(
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in zip(*cells, strict=True)
    ]
    return "\n".join([title, *(f"  {line}".rstrip() for line in lines)])
