"""A row of a benchmark: two sides, what was measured of them, and the ratio. Imports no JAX."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison: how many times the baseline's value ours is."""

    what: str
    """What was measured."""
    ours: str
    our_value: str
    baseline: str
    """What it is compared with."""
    baseline_value: str
    """"-" if that is not installed."""
    ratio: float
    """NaN if there is nothing to compare with."""
    spread: tuple[float, float] | None = None
    """The quartiles of the rounds' ratios."""
    at_most: float | None = None
    """What the ratio may be, from `limits.toml`."""
    reason: str = ""
    """Why that."""

    @property
    def passed(self) -> bool:
        return self.at_most is None or not self.ratio > self.at_most

    @property
    def verdict(self) -> str:
        if self.at_most is None or math.isnan(self.ratio):
            return ""
        return "ok" if self.passed else "MISSED"


def table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    header = ("measured", "against", "", "ours", "", "ratio", "limit", "")
    return markdown([header, *map(_cells, rows)])


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "-" if math.isnan(row.ratio) else f"{row.ratio:.3f}"
    limit = "" if row.at_most is None else f"≤{row.at_most:.2f}"
    values = (row.baseline, row.baseline_value, row.ours, row.our_value)
    return (row.what, *values, ratio, limit, row.verdict)


def matrix(rows: Sequence[Row], ours: str = "Replicax") -> list[list[str]]:
    """One line for each side and one column for each thing measured: its time, and how many times ours.

    Only rows of `ours` count, and those against "fastest ..." do not: these sides have lines of their own.
    """
    rows = [row for row in rows if row.ours == ours and not row.baseline.startswith("fastest")]
    columns = list(dict.fromkeys(row.what for row in rows))
    cells = {(row.baseline, row.what): _cell(row) for row in rows}
    own = {row.what: row.our_value for row in rows}
    sides = list(dict.fromkeys(row.baseline for row in rows))
    lines = [[ours, *(own[what] for what in columns)]]
    lines += [[side, *(cells.get((side, what), "") for what in columns)] for side in sides]
    return [["", *columns], *lines]


def _cell(row: Row) -> str:
    return "-" if math.isnan(row.ratio) else f"{row.baseline_value} ({1 / row.ratio:.2f}x)"


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first line is its header."""
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    texts = [" | ".join(map(str.ljust, line, widths)) for line in lines]
    rule = " | ".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in (texts[0], rule, *texts[1:]))
