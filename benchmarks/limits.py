"""What ratios may be at most: `limits.toml`, and which of its limits a row has. Imports no JAX."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

from rows import Row


@dataclasses.dataclass(frozen=True)
class Limit:
    """A limit of the rows whose program and texts match its patterns."""

    program: str
    at_most: float
    reason: str
    measured: str = "*"
    ours: str = "*"
    against: str = "*"
    quick: float | None = None
    """The limit of a quick run, which has fewer rounds."""

    def covers(self, program: str, row: Row) -> bool:
        pairs = ((program, self.program), (row.what, self.measured))
        pairs += ((row.ours, self.ours), (row.baseline, self.against))
        return all(fnmatchcase(text, pattern) for text, pattern in pairs)


@functools.cache
def all_limits() -> tuple[Limit, ...]:
    text = Path(__file__).with_name("limits.toml").read_text(encoding="utf-8")
    return tuple(Limit(**entry) for entry in tomllib.loads(text)["limit"])


def with_limit(row: Row, program: str, *, quick: bool) -> Row:
    """The row with the first limit that covers it, if there is one."""
    limit = next((limit for limit in all_limits() if limit.covers(program, row)), None)
    if limit is None:
        return row
    at_most = limit.quick if quick and limit.quick is not None else limit.at_most
    return dataclasses.replace(row, at_most=at_most, reason=limit.reason)
