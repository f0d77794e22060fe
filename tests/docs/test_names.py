"""The table of all names of tf.distribute is true of Replicax and of `replicax.tf`, and complete."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "names.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]
STATUSES = ("same", "renamed", "different", "missing")


def _find(name):
    """The object of a dotted name; None if there is none."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for part in parts[1:]:
        path = f"{getattr(found, '__name__', '')}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(path)
            except ImportError:
                return None
    return found


def _ours(name):
    return _find(re.sub(r"^rx\.", "replicax.", name))


def _in_tf(name):
    return _find(re.sub(r"^tf\.", "replicax.tf.", name))


def test_no_name_is_there_twice():
    names = [row[0] for row in ROWS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("status", STATUSES)
def test_the_rows_are_true(status, subtests):
    for theirs, ours, note in ROWS:
        if note.split(":")[0] != status:
            continue
        with subtests.test(theirs):
            theirs, ours = theirs.strip("`"), ours.strip("`")
            assert (_in_tf(theirs) is None) == (status == "missing"), f"{theirs} of replicax.tf"
            assert not ours or _ours(ours) is not None, f"{ours} does not exist"
            last = theirs.rpartition(".")[2], ours.rpartition(".")[2]
            if status == "same":
                assert last[0] == last[1]
            assert status in ("same", "renamed") or ":" in note


def test_every_row_has_a_status():
    assert {note.split(":")[0] for *_, note in ROWS} == set(STATUSES)


def test_the_table_is_complete():
    names = {row[0].strip("`") for row in ROWS}
    recorded = (Path(__file__).parent / "tensorflow_names.txt").read_text().split()
    assert sorted(set(recorded) - names) == []
