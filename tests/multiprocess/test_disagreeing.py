"""Workers that disagree about what to run are stopped, with an error that names the ranks and lines."""

import pytest
from tests.multiprocess import disagreeing

from replicax import testing


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        (disagreeing.skip_a_step, ["step make.<locals>.train", "with batch"]),
        (disagreeing.run_another_step, ["step make.<locals>.train", "run_another_step.<locals>"]),
        (disagreeing.have_fewer_rows, ["float32[6]", "float32[4]"]),
    ],
    ids=["skipped step", "another step", "fewer rows"],
)
def test_disagreement(program, parts):
    with testing.start(program, num_workers=2) as workers:
        outcomes = workers.wait(120, 60)
    for outcome in outcomes:
        assert outcome.status != 0 and not outcome.stopped, outcome
        assert "CollectiveMismatchError" in outcome.output, outcome.output
        assert "rank 0 (worker 0" in outcome.output and "rank 1 (worker 1" in outcome.output
        for part in [*parts, "disagreeing.py:"]:
            assert part in outcome.output, outcome.output
