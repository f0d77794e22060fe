"""What was recorded, joined with our cases, what is left out, and where we differ.

Every recorded case has exactly one fate: `covered` (we must give what TensorFlow gave), `differing`
(we must give what `differences.py` says) or `left out` (with a reason); never `unaccounted`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from . import cases_data, cases_default, cases_extended, cases_extra, cases_reduce, cases_run, cases_vars
from .differences import DIFFERENCES, Ours
from .world import World

__all__ = ["PROBES", "Recorded", "every_case", "matches", "read", "table", "unused"]

FATES = ("covered", "differing", "left out", "unaccounted")


@dataclass(frozen=True)
class Probe:
    """One recorded program: our versions of its cases and those that are left out."""

    functions: dict[tuple[str, str], Callable[[World], Any]]
    left_out: dict[str, str]


PROBES = {
    "run": Probe(cases_run.case.functions, cases_run.LEFT_OUT),
    "vars": Probe(cases_vars.case.functions, cases_vars.LEFT_OUT),
    "reduce": Probe(cases_reduce.case.functions, cases_reduce.LEFT_OUT),
    "extended": Probe(cases_extended.case.functions, cases_extended.LEFT_OUT),
    "default": Probe(cases_default.case.functions, {}),
    "several": Probe(cases_default.several.functions, {}),
    "extra": Probe(cases_extra.case.functions, cases_extra.LEFT_OUT),
    "data": Probe(cases_data.case.functions, cases_data.LEFT_OUT),
    "split": Probe(cases_data.split.functions, {}),
}


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Whether `name` is `pattern`, in which `*` stands for anything."""
    return _pattern(pattern).fullmatch(name) is not None


@dataclass(frozen=True)
class Recorded:
    """One recorded case of one kind of strategy."""

    probe: str
    kind: str
    section: str
    name: str
    result: str

    @property
    def id(self) -> str:
        """Its name in reports."""
        return f"{self.probe}-{self.kind}-{self.name}"

    @property
    def run(self) -> Callable[[World], Any] | None:
        """Our version of the case."""
        return PROBES[self.probe].functions.get((self.section, self.name))

    @property
    def why_left_out(self) -> str | None:
        """The reason, if the case is left out."""
        left_out = PROBES[self.probe].left_out if self.probe in PROBES else {}
        return next((why for pattern, why in left_out.items() if matches(pattern, self.name)), None)

    @cached_property
    def difference(self) -> Ours | None:
        """What we give instead, if we mean to differ."""
        found = [ours for key, ours in DIFFERENCES.items() if self.is_meant_by(*key)]
        assert len(found) < 2, f"{self.id} is listed twice: {found}"
        return found[0] if found else None

    def is_meant_by(self, probe: str, kinds: str, name: str) -> bool:
        """Whether a key of a list (probe, kinds, name) is about this case."""
        names = (self.name, f"{self.section}: {self.name}")  # the section tells cases of one name apart
        found = any(matches(name, own) for own in names)
        return self.probe == probe and self.kind in kinds.split("+") and found

    @property
    def fate(self) -> str:
        """The fate of the case."""
        if self.run is None:
            return "unaccounted" if self.why_left_out is None else "left out"
        assert self.why_left_out is None, f"{self.id} is written and left out"
        return "covered" if self.difference is None else "differing"

    @property
    def expected(self) -> str:
        """What our version must give."""
        return self.result if self.difference is None else self.difference.gives


@cache
def every_case() -> tuple[Recorded, ...]:
    """All recorded cases, in the order in which they were recorded."""
    return tuple(case for probe in PROBES for case in read(probe))


def read(probe: str) -> Iterator[Recorded]:
    """The recorded cases of one probe."""
    path = Path(__file__).parent / "data" / f"{probe}.json"
    for row in json.loads(path.read_text())["cases"]:
        section, name = row.pop("section"), row.pop("name")
        for kinds, result in row.items():
            for kind in kinds.split("+"):
                yield Recorded(probe, kind, section, name, result)


def unused() -> list[str]:
    """Left-out patterns, differences and cases of ours that belong to no recorded case."""
    cases = every_case()
    recorded = {(case.probe, case.section, case.name) for case in cases}
    left_out = [
        f"{probe}: left out {pattern!r}"
        for probe, at in PROBES.items()
        for pattern in at.left_out
        if not any(case.probe == probe and matches(pattern, case.name) for case in cases)
    ]
    differing = [
        f"difference {key}" for key in DIFFERENCES if not any(case.is_meant_by(*key) for case in cases)
    ]
    ours = [
        f"{probe}: case {section}/{name}"
        for probe, at in PROBES.items()
        for section, name in at.functions
        if (probe, section, name) not in recorded
    ]
    return [*left_out, *differing, *ours]


def table(cases: Iterable[Recorded]) -> str:
    """How many cases of each probe and kind have which fate."""
    counts = Counter((case.probe, case.kind, case.fate) for case in cases)
    rows = sorted(
        {(probe, kind) for probe, kind, _ in counts},
        key=lambda row: (list(PROBES).index(row[0]), row[1]),
    )
    lines = [f"{'probe':<10}{'kind':<10}" + "".join(f"{fate:>13}" for fate in FATES)]
    for probe, kind in rows:
        lines.append(
            f"{probe:<10}{kind:<10}" + "".join(f"{counts[probe, kind, fate]:>13}" for fate in FATES)
        )
    totals = Counter(fate for (_, _, fate), n in counts.items() for _ in range(n))
    lines.append(f"{'all':<20}" + "".join(f"{totals[fate]:>13}" for fate in FATES))
    return "\n".join(lines)
