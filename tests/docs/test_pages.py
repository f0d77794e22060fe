"""Every page runs as shown: in a new interpreter, from its first line to its last.

The ordinary tests run the pages in the process of the tests, with no names but those that a page imports.
Most of these tests, which start a process each, are therefore marked `long`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITH_EXAMPLES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if any(line.startswith(">>>") for line in path.read_text().splitlines())
]
QUICK = ROOT / "docs" / "errors.md"


def _name(path):
    return path.relative_to(ROOT).as_posix()


def _run(path, folder):
    result = subprocess.run(
        [sys.executable, "-m", "doctest", "-o", "ELLIPSIS", path],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]


def test_a_page_runs_in_a_new_interpreter(tmp_path):
    _run(QUICK, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=_name)
def test_every_page_runs_in_a_new_interpreter(path, tmp_path):
    _run(path, tmp_path)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=_name)
def test_a_page_starts_with_its_imports_and_devices(path):
    """So that a reader who copies the first examples has all that the rest of the page needs."""
    code = [line for line in path.read_text().splitlines() if line.startswith(">>> ")]
    first = code[:12]
    assert ">>> import replicax as rx" in first
    assert any(line.startswith(">>> rx.set_cpu_devices(8)") for line in first)
