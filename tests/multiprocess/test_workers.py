"""`MultiWorkerMirroredStrategy` on 2 and 3 workers with 1 and 2 devices each, eagerly and compiled."""

import os

import pytest
from tests.multiprocess.cases import cases_of, run_cases

from replicax import testing

MODULES = ("conformance_cases", "mismatch_cases", "training_cases")
CASES = [case for module in MODULES for case in cases_of(f"tests.multiprocess.{module}")]
QUICK = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}


# With 3 workers, what depends on their number; everything with --everything.
SOME = [
    case for case in CASES if any(word in case for word in ("unequal", "different", "sgd", "mega", "rows-"))
]
# With one device each, every case once, and eagerly also what depends on the number of local replicas.
ONE_DEVICE = [case for case in CASES if case.endswith("-compiled") or "one_local" in case or case in SOME]


@pytest.mark.parametrize(
    ("workers", "devices", "cases"),
    [
        pytest.param(2, 1, ONE_DEVICE, id="2x1-some"),
        pytest.param(2, 2, CASES, id="2x2"),
        pytest.param(3, 1, SOME, id="3x1-some"),
        pytest.param(2, 1, CASES, id="2x1", marks=pytest.mark.long),
        pytest.param(3, 1, CASES, id="3x1", marks=pytest.mark.long),
    ],
)
def test_workers(workers, devices, cases, subtests):
    found = testing.run(
        run_cases, (cases,), num_workers=workers, devices_per_worker=devices, environment=QUICK
    )
    for case in cases:
        with subtests.test(case):
            for rank, failures in enumerate(found):
                assert case not in failures, f"rank {rank}:\n{failures[case]}"
