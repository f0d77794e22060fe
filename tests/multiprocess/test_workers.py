"""`MultiWorkerMirroredStrategy` on 2 and 3 workers with 1 and 2 devices each, eagerly and compiled."""

import os

import pytest
from tests.multiprocess.cases import cases_of, run_cases

from replicax import testing

MODULES = [f"tests.multiprocess.{name}_cases" for name in ("conformance", "mismatch", "training")]
CASES = cases_of(MODULES)
QUICK = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}


# With 3 workers, what depends on their number; everything with --everything.
SOME = cases_of(MODULES, depending_on="workers")
# With one device each, every case once, and eagerly also what depends on the number of local replicas.
EAGER_TOO = {*SOME, *cases_of(MODULES, depending_on="local replicas")}
ONE_DEVICE = [case for case in CASES if case.endswith("-compiled") or case in EAGER_TOO]


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
