"""Every example of one feature runs and asserts what it shows; `test_examples.py` runs the larger ones."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted((EXAMPLES / "by_feature").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_example_runs(path):
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_the_table_names_every_example():
    table = (EXAMPLES / "README.md").read_text()
    named = set(re.findall(r"^\| \[`[^`]+`\]\(([^)]+\.py)\)", table, re.MULTILINE))
    there = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    assert named == there - {"images.py"}
