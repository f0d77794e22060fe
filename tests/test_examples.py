"""The examples run, and the README shows them as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path):
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_quick_start_learns_the_line():
    path = ROOT / "examples" / "quick_start.py"
    result = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100, check=True)
    assert "weights [ 1. -2.  3.] bias 0.5" in result.stdout


def test_the_readme_shows_the_quick_start():
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program.strip() in (ROOT / "examples" / "quick_start.py").read_text()
