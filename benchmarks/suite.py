"""All benchmarks: one table, one JSON file and one page with plots.

    python benchmarks/suite.py [--quick] [--only training,first:step] [--again] [--gpu]
                               [--output FOLDER] [--peers PYTHON] [--rounds N]

A *part* is one benchmark of one program, in a process of its own. Its results are stored in FOLDER/parts as
soon as it ends, and a part that has results is not measured again, so a run that was interrupted continues
where it was. `--again` measures all that is asked for; `--only` names programs or parts; `--only nothing`
draws the page from what is there.

The results: FOLDER/results.json, FOLDER/tables.md and FOLDER/index.html. The suite fails if a ratio exceeds
its limit (`limits.toml`) or a part fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from limits import all_limits, with_limit
from rows import Row, markdown, matrix, table

HERE = Path(__file__).parent
PART_SECONDS = 3600

NETWORKS = ("empty", "tiny", "medium", "convolutions", "transformer", "many")
PROGRAMS: dict[str, tuple[str, ...]] = {
    "training": NETWORKS,
    "multiworker": ("empty", "tiny", "medium", "many", "transformer"),
    "overhead": ("host", "tiny", "loop", "gradients", "tracing", "eager"),
    "first": ("step", "reduce", "eager"),
    "memory": ("peak", "allocator"),
    "uneven": ("tiny", "medium"),
    "tape": ("compiled", "host", "eager", "tracing"),
    "nnx": ("host", "replicas"),
    "sharded": ("medium", "transformer"),
    "input": ("arrays", "waiting"),
    "checkpoint": ("writing", "resumed"),
    "imports": ("imports",),
    "watchdog": ("watchdog",),
    "parameter_server": ("mlp_1ps", "mlp_2ps", "many_1ps", "many_2ps", "embedding_1ps", "embedding_2ps"),
    "scaling": ("replicas", "variables", "model"),
}
GPU_PROGRAMS: dict[str, tuple[str, ...]] = {"training": NETWORKS, "gpt": ("step", "first")}
QUICK_PROGRAMS: dict[str, tuple[str, ...]] = {
    "training": ("empty", "tiny", "medium", "many"),
    "multiworker": ("tiny",),
    "overhead": ("host", "tiny", "tracing"),
    "first": ("step", "reduce"),
    "memory": ("peak",),
    "input": ("arrays",),
    "imports": ("imports",),
}


class Part(NamedTuple):
    """One benchmark of one program."""

    program: str
    benchmark: str

    def __str__(self) -> str:
        return f"{self.program}:{self.benchmark}"


def all_parts(programs: dict[str, tuple[str, ...]]) -> list[Part]:
    return [Part(program, benchmark) for program, names in programs.items() for benchmark in names]


def chosen_parts(programs: dict[str, tuple[str, ...]], only: str | None) -> list[Part]:
    parts = all_parts(programs)
    if only is None:
        return parts
    words = set(only.split(",")) - {"nothing"}
    known = {str(part) for part in parts} | set(programs)
    if unknown := words - known:
        sys.exit(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(sorted(known))}")
    return [part for part in parts if {part.program, str(part)} & words]


# Measuring.


class Suite:
    """The parts, and the folder with their results."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        self._folder, self._options = folder, options
        self._parts = folder / "parts"
        self._parts.mkdir(parents=True, exist_ok=True)

    def file(self, part: Part) -> Path:
        return self._parts / f"{part.program}-{part.benchmark}.json"

    def measure(self, part: Part) -> bool:
        """Run a part; whether it has results."""
        file, script = self.file(part), HERE / f"{part.program}.py"
        working = file.with_suffix(".working")
        command = [sys.executable, str(script), "--only", part.benchmark, "--json", str(working)]
        try:
            subprocess.run(
                [*command, "--no-check", *self._options],
                stdout=subprocess.DEVNULL,
                check=True,
                timeout=PART_SECONDS,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{part} failed: {error}", file=sys.stderr)
            return False
        working.replace(file)
        return True

    def results(self, programs: dict[str, tuple[str, ...]]) -> dict[str, Any]:
        """What is there of all parts, by part."""
        files = {str(part): self.file(part) for part in all_parts(programs)}
        return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def measure_all(suite: Suite, parts: list[Part], again: bool) -> list[str]:
    """Measure the parts that have no results; the names of those that failed."""
    failed = []
    for i, part in enumerate(parts, 1):
        label = f"[{i}/{len(parts)}] {part}"
        if suite.file(part).exists() and not again:
            print(f"{label}: measured before", file=sys.stderr, flush=True)
            continue
        start, before = time.monotonic(), _processor_seconds()
        if not suite.measure(part):
            failed.append(str(part))
        took = f"{time.monotonic() - start:.0f} s, {_processor_seconds() - before:.0f} s of processors"
        print(f"{label}: {took}", file=sys.stderr, flush=True)
    return failed


def _processor_seconds() -> float:
    """What the processes that have ended took: on a busy machine, more telling than the time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# Reporting.


def rows_of(program: str, result: dict[str, Any]) -> list[Row]:
    """The rows of a part, with the limits of today."""
    plain = (Row(**{**row, "at_most": None, "reason": ""}) for row in result["rows"])
    return [with_limit(row, program, quick=result["quick"]) for row in plain]


def by_program(results: dict[str, Any]) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for name, result in results.items():
        program = name.partition(":")[0]
        rows.setdefault(program, []).extend(rows_of(program, result))
    return rows


MATRICES = {
    "training": "One process, two devices: the time of a step, and how many times that of Replicax",
    "multiworker": "Two processes of one device: the time of a step, and how many times that of Replicax",
}


def tables(rows: dict[str, list[Row]]) -> str:
    """All tables, in Markdown."""
    sections = [
        f"{title}\n\n{markdown(matrix(rows[program]))}"
        for program, title in MATRICES.items()
        if rows.get(program)
    ]
    for program, own in rows.items():
        shown = own if program not in MATRICES else [row for row in own if row.at_most is not None]
        if shown:
            sections.append(f"{program}\n\n{table(shown)}")
    return "\n\n".join(sections)


def unused_limits(rows: dict[str, list[Row]]) -> list[str]:
    """The limits of programs with results that no row of theirs has."""
    return [
        f"{limit.program}: {limit.measured} against {limit.against}"
        for limit in all_limits()
        if limit.program in rows
        and not any(limit.covers(limit.program, row) for row in rows[limit.program])
    ]


def report(folder: Path, results: dict[str, Any], failed: list[str]) -> int:
    """Print the tables and write the files; 1 if a limit is exceeded or a part failed."""
    rows = by_program(results)
    text = tables(rows)
    print(text)
    (folder / "tables.md").write_text(text + "\n", encoding="utf-8")
    found = {
        "parts": results,
        "failed": failed,
        "programs": {program: [dataclasses.asdict(row) for row in own] for program, own in rows.items()},
        "matrices": {p: {"title": t, "lines": matrix(rows[p])} for p, t in MATRICES.items() if rows.get(p)},
    }
    (folder / "results.json").write_text(json.dumps(found), encoding="utf-8")
    write_page(folder, found)
    missed = [f"{program}: {row.what}" for program, own in rows.items() for row in own if not row.passed]
    for line in missed:
        print(f"above its limit: {line}", file=sys.stderr)
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return int(bool(missed or failed))


def write_page(folder: Path, found: dict[str, Any]) -> None:
    from replicax._page import page, save_page

    path = save_page(page(HERE / "page.html", _finite(found)), folder / "index.html")
    print(f"\nwrote {path}, results.json and tables.md", file=sys.stderr)


def _finite(value: Any) -> Any:
    """The same with None in place of NaN, which JSON in a browser does not have."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and value != value else value


def main() -> int:
    parser = argparse.ArgumentParser(description="All benchmarks: one table, one JSON file, one page.")
    parser.add_argument("--quick", action="store_true", help="the parts that fit into five minutes")
    parser.add_argument("--gpu", action="store_true", help="the parts that are about a GPU")
    parser.add_argument("--only", help="programs or parts, such as training,first:step")
    parser.add_argument("--again", action="store_true", help="measure parts that have results, too")
    parser.add_argument("--output", type=Path, help="the folder of the results")
    parser.add_argument("--rounds", type=int, help="at most so many rounds, for a shorter run")
    parser.add_argument("--peers", action="append", default=[], help="a Python with other frameworks")
    arguments = parser.parse_args()
    kind = "quick" if arguments.quick else "gpu" if arguments.gpu else "all"
    programs = {"quick": QUICK_PROGRAMS, "gpu": GPU_PROGRAMS, "all": PROGRAMS}[kind]
    folder = arguments.output or HERE.parent / "build" / "bench" / kind
    options = ["--quick"] * arguments.quick
    options += ["--rounds", str(arguments.rounds)] if arguments.rounds else []
    options += [word for python in arguments.peers for word in ("--peers", python)]
    suite = Suite(folder, options)
    parts = chosen_parts(programs, arguments.only)
    failed = measure_all(suite, parts, arguments.again or arguments.quick)
    results = suite.results(programs)
    if not arguments.quick:
        for line in unused_limits(by_program(results)) if arguments.only is None else ():
            print(f"no row has this limit: {line}", file=sys.stderr)
    return report(folder, results, failed)


if __name__ == "__main__":
    sys.exit(main())
