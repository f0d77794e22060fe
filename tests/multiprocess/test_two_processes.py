"""One strategy over two processes with two CPU devices each: the same code, values and meaning.

`two_processes.py` has the checks. All run in one pair of processes, because starting JAX takes most of
the time.
"""

from pathlib import Path

import pytest
from tests.multiprocess.launch import launch

PROGRAM = Path(__file__).with_name("two_processes.py")


@pytest.fixture(scope="module")
def printed():
    return launch(PROGRAM, num_processes=2)


def test_all_checks_ran_in_both_processes(printed):
    names = [[x for x in text.splitlines() if x.startswith("passed")] for text in printed]
    assert names[0] and names[0] == names[1]
