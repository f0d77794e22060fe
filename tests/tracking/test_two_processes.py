"""In a cluster of two real processes, the first one writes."""

from pathlib import Path

from tests.multiprocess.launch import launch


def test_the_first_process_writes_for_both():
    first, second = (
        [line for line in text.splitlines() if line.startswith(("step", "logged", "first"))]
        for text in launch(Path(__file__).with_name("two_processes.py"))
    )
    assert first[-3:] == ["step 4  loss 8", "logged done", "first True"]
    assert second == ["first False"]
