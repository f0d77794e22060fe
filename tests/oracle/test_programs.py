"""Every recorded program, run with `replicax.tf` in place of TensorFlow."""

from pathlib import Path

import pytest

from .programs import PROGRAMS, cases_of, idle, problems, row, stale, unused

DOCS = Path(__file__).parents[2] / "docs" / "porting.md"

RUNS = [(name, kind) for name, program in PROGRAMS.items() for kind in program.kinds]


@pytest.mark.parametrize(("name", "kind"), RUNS, ids=["-".join(run) for run in RUNS])
def test_program(name, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if name in ("misc", "keras"):
        pytest.importorskip("keras")
    cases = cases_of(name, kind, monkeypatch)
    wrong = problems(cases)
    assert not wrong, "\n".join(wrong)
    assert stale(cases) == []
    assert idle(cases) == []
    assert row(name, kind, cases) in DOCS.read_text(), row(name, kind, cases)


def test_nothing_is_listed_in_vain():
    assert unused() == []
