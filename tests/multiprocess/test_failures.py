"""A worker that fails is named by all others; `python -m tests.multiprocess.failures` has more cases."""

import pytest
from tests.multiprocess.failures import last_error, measure

# Twice the targets: continuous integration is slower than a machine that trains.
CASES = {
    "an exception": ("raise", 1, "step", 2),
    "a killed first worker": ("kill", 0, "input", 3),
    "a worker that ends": ("exit", 1, "compilation", 2),
    "a sleeping worker": ("sleep", 0, "checkpoint", 2),
    "a worker that fails when all is done": ("kill", 1, "shutdown", 2),
}


@pytest.mark.parametrize("case", CASES)
def test_a_failure_is_named_by_all_others(case):
    result = measure(*CASES[case], limit=4.0)
    report = "\n---- next worker\n".join(result.outputs)
    assert result.is_named, report
    assert not result.left_behind
    assert result.seconds < 10.0 + 2 * result.target(4.0), report
    if case == "an exception":
        error = last_error(result.outputs[0])
        assert "WorkerFailedError" in error and "LookupError: no such row" in error
        assert "failing.py" in error  # the traceback of the other worker
    if case == "a sleeping worker":
        error = last_error(result.outputs[1])
        assert "WorkerStuckError" in error and "time.sleep(600)" in error
