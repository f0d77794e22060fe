"""The recorded programs themselves, run with `replicax.tf`, case by case.

A case has one fate: it `agrees` with what TensorFlow gave, it `differs` on purpose (`differences.py`, or
`program_differences.py` for what only the program shows), it is `left out` because it inspects
TensorFlow's internals, or it is `open`: listed in `OPEN`, and counted against us.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from .describe import Observation, compare
from .harness import Outcome, run_program
from .program_differences import LEFT_OUT, OPEN, PROGRAM_DIFFERENCES, with_one_class
from .recorded import Recorded, read

__all__ = ["PROGRAMS", "Case", "Program", "cases_of", "row", "table"]

_KINDS = ("mirrored", "central", "onedev")
FATES = ("agrees", "differs", "left out", "open", "wrong")


@dataclass(frozen=True)
class Program:
    """A recorded program: the file, and which recordings are of it."""

    file: str
    probes: tuple[str, ...]
    kinds: tuple[str, ...] = ("mirrored",)
    uses_keras: bool = False


PROGRAMS = {
    "documents": Program("probe_01_documents.py", ("documents",)),
    "run": Program("probe_02_run.py", ("run",), _KINDS),
    "vars": Program("probe_03_vars.py", ("vars",), _KINDS),
    "reduce": Program("probe_04_reduce.py", ("reduce",), _KINDS),
    "extended": Program("probe_05_extended.py", ("extended",), _KINDS),
    "data": Program("probe_06_data.py", ("data",), _KINDS),
    "split": Program("probe_07_split_policy.py", ("split",)),
    "checkpoints": Program("probe_08_ckpt.py", ("checkpoints",)),
    "misc": Program(
        "probe_11_misc.py", ("default", "several", "cluster", "generator", "keras"), uses_keras=True
    ),
    "extra": Program("probe_12_extra.py", ("extra",)),
    "keras": Program("probe_13_keras_bn.py", ("keras_fit",), uses_keras=True),
}


@dataclass(frozen=True)
class Case:
    """One case of a program: the recorded result, and the outcome here."""

    recorded: Recorded
    observed: Observation | None

    @property
    def fate(self) -> str:
        """Its fate."""
        if self._listed(LEFT_OUT) is not None or self.recorded.why_left_out is not None:
            return "left out"
        if self.observed is not None and not compare(self.recorded.result, self.observed):
            return "agrees"
        if self.observed is not None and any(not compare(text, self.observed) for text in self._expected()):
            return "differs"
        return "wrong" if self._listed(OPEN) is None else "open"

    def _expected(self) -> list[str]:
        """What we may give instead of what was recorded."""
        listed = (self._listed(PROGRAM_DIFFERENCES), self.recorded.difference)
        return [
            with_one_class(self.recorded.result),
            *(ours.gives for ours in listed if ours is not None),
        ]

    def _listed(self, listed: dict[tuple[str, str, str], Any]) -> Any:
        found = [value for key, value in listed.items() if self.recorded.is_meant_by(*key)]
        return found[0] if found else None

    def explain(self) -> str:
        """What is wrong with it."""
        ours = "did not run" if self.observed is None else self.observed.text
        error = "" if self.observed is None or self.observed.error is None else f" ({self.observed.error})"
        return f"{self.recorded.id}\n    ours:     {ours}{error}\n    recorded: {self.recorded.result}"


def cases_of(name: str, kind: str, monkeypatch: Any) -> list[Case]:
    """Run a program with one kind of strategy; its recorded cases with their outcomes here."""
    program = PROGRAMS[name]
    if program.uses_keras:
        importlib.import_module("replicax.integrations.keras")
    outcomes = run_program(program.file, kind, monkeypatch)
    by_name = {(outcome.section, outcome.name): outcome for outcome in outcomes}
    recorded = [
        case
        for probe in program.probes
        for case in read(probe)
        if case.kind == kind or (len(program.kinds) == 1 and case.kind == "default")
    ]
    return [Case(case, _observed(by_name.get((case.section, case.name)))) for case in recorded]


def _observed(outcome: Outcome | None) -> Observation | None:
    return None if outcome is None else outcome.observed


def row(name: str, kind: str, cases: list[Case]) -> str:
    """A line of the table."""
    counts = Counter(case.fate for case in cases)
    numbers = " | ".join(str(counts[fate]) for fate in FATES[:-1])
    return f"| {name} | {kind} | {len(cases)} | {numbers} |"


def table(monkeypatch: Any) -> str:
    """How many cases of each program have which fate."""
    lines = [
        "| program | strategy | cases | agree | differ on purpose | left out | open |",
        "|" + " --- |" * 7,
    ]
    for name, program in PROGRAMS.items():
        for kind in program.kinds:
            print(name, kind, file=sys.stderr)
            lines.append(row(name, kind, cases_of(name, kind, monkeypatch)))
    columns = [[int(cell) for cell in line.split("|")[3:8]] for line in lines[2:]]
    totals = " | ".join(str(sum(column)) for column in zip(*columns, strict=True))
    return "\n".join([*lines, f"| all | | {totals} |"])


def problems(cases: list[Case]) -> list[str]:
    """The cases that are neither right nor accounted for."""
    return [case.explain() for case in cases if case.fate == "wrong"]


def stale(cases: list[Case]) -> list[str]:
    """Cases that are listed as open, but agree."""
    return [case.recorded.id for case in cases if case.fate == "agrees" and case._listed(OPEN) is not None]


def idle(cases: list[Case]) -> list[str]:
    """Differences that are listed, although all their cases agree."""
    found = []
    for key in PROGRAM_DIFFERENCES:
        fates = [case.fate for case in cases if case.recorded.is_meant_by(*key)]
        if fates and set(fates) <= {"agrees", "left out"}:
            found.append(f"{key}")
    return found


def unused() -> list[str]:
    """What is listed, but belongs to no recorded case."""
    recorded = [case for program in PROGRAMS.values() for probe in program.probes for case in read(probe)]
    return [
        f"{key}"
        for listed in (LEFT_OUT, OPEN, PROGRAM_DIFFERENCES)
        for key in listed
        if not any(case.is_meant_by(*key) for case in recorded)
    ]
