"""TensorFlow's multi-worker tutorials; `python -m tests.multiprocess.tutorials` runs them more often."""

import pytest

pytest.importorskip("keras")
pytest.importorskip("sklearn")

from tests.multiprocess.tutorials.__main__ import run_with_replicax


@pytest.mark.long
@pytest.mark.parametrize("program", ["custom_loop", "keras_fit"])
def test_all_workers_and_runs_have_the_same_accuracy(program):
    first, second = (run_with_replicax(program, epochs=2, steps=4) for _ in range(2))
    assert len(first[0]) >= 2 and first[0] == first[1]
    assert first == second
