"""The benchmarks as a suite: their names, limits and tables. Nothing is measured."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load():
    """Import a module of the benchmarks, which are programs beside each other; forgotten at the end."""
    path, names = list(sys.path), [file.stem for file in BENCHMARKS.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path[:] = path
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)  # another package's modules with such a name


def row(load, **changes):
    values = {"what": "a step", "ours": "Replicax", "our_value": "1 ms"}
    values |= {"baseline": "by hand", "baseline_value": "2 ms"}
    return load("rows").Row(**{**values, "ratio": 0.5, **changes})


def test_the_suite_names_benchmarks_that_exist(load, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")  # which `gpt` sets
    suite = load("suite")
    for programs in (suite.PROGRAMS, suite.QUICK_PROGRAMS, suite.GPU_PROGRAMS):
        for program, names in programs.items():
            assert set(names) <= set(load(program).BENCHMARKS), program
    for program in suite.PROGRAMS:
        assert set(suite.PROGRAMS[program]) == set(load(program).BENCHMARKS), program


def test_every_limit_has_a_reason_and_a_program(load):
    for limit in load("limits").all_limits():
        assert limit.reason.endswith("."), limit
        assert (BENCHMARKS / f"{limit.program}.py").exists(), limit
        assert limit.quick is None or limit.quick >= limit.at_most, limit


def test_the_first_limit_that_covers_a_row_counts(load):
    limits = load("limits")
    found = row(load, what="8-8-4, batch 4", baseline="fastest by hand")
    strict = limits.with_limit(found, "training", quick=False)
    assert strict.at_most == 1.05 and "empty step" in strict.reason
    assert limits.with_limit(found, "training", quick=True).at_most > 1.05
    assert limits.with_limit(found, "watchdog", quick=False).at_most == 1.01
    assert limits.with_limit(found, "no such program", quick=False).at_most is None


def test_verdicts(load):
    verdicts = [
        row(load, ratio=ratio, at_most=at_most).verdict
        for ratio, at_most in ((1.1, 1.2), (1.3, 1.2), (float("nan"), 1.2), (1.3, None))
    ]
    assert verdicts == ["ok", "MISSED", "", ""]
    assert row(load, ratio=float("nan"), at_most=1.0).passed


def test_the_matrix_has_a_line_for_each_side_and_a_dash_for_what_is_missing(load):
    found = [
        row(load, what="tiny"),
        row(load, what="tiny", baseline="fastest by hand"),
        row(load, what="tiny", baseline="TensorFlow", baseline_value="-", ratio=float("nan")),
        row(load, what="large", our_value="3 ms", baseline="TensorFlow", baseline_value="6 ms"),
    ]
    assert load("rows").matrix(found) == [
        ["", "tiny", "large"],
        ["Replicax", "1 ms", "3 ms"],
        ["by hand", "2 ms (2.00x)", ""],
        ["TensorFlow", "-", "6 ms (2.00x)"],
    ]


def test_a_run_continues_and_reports_what_is_above_its_limit(load, tmp_path, monkeypatch, capsys):
    suite = load("suite")
    parts = [
        suite.Part("training", "tiny"),
        suite.Part("imports", "imports"),
        suite.Part("watchdog", "watchdog"),
    ]
    result = {"quick": False, "date": "2026-01-01 00:00", "load": 0.1, "points": {}, "num_cores": 2}
    result |= {"device": "cpu", "python": "3.11", "versions": {"jax": "1", "replicax": "1"}}
    given = {
        "training": row(load, what="784-128-10, batch 64", baseline="fastest by hand", ratio=2.0),
        "imports": row(load, baseline="jax", baseline_value="-", ratio=float("nan")),
    }
    measured = []

    def measure(self, part):
        measured.append(part.program)
        if part.program not in given:
            return False
        rows = [dataclasses.asdict(given[part.program])]
        self.file(part).write_text(json.dumps({**result, "rows": rows}))
        return True

    monkeypatch.setattr(suite.Suite, "measure", measure)
    found = suite.Suite(tmp_path, [])
    assert suite.measure_all(found, parts, again=False) == ["watchdog:watchdog"]
    assert suite.measure_all(found, parts, again=False) == ["watchdog:watchdog"]
    assert measured == ["training", "imports", "watchdog", "watchdog"]
    assert suite.report(tmp_path, found.results(suite.PROGRAMS), ["watchdog:watchdog"]) == 1
    output = capsys.readouterr()
    assert "above its limit: training: 784-128-10, batch 64" in output.err
    assert "failed: watchdog:watchdog" in output.err
    assert "MISSED" in (tmp_path / "tables.md").read_text()
    page = (tmp_path / "index.html").read_text()
    assert "NaN" not in page.partition("const data")[2].partition("\n")[0]
    assert json.loads((tmp_path / "results.json").read_text())["failed"] == ["watchdog:watchdog"]
