"""`MultiWorkerMirroredStrategy` on 2 and 3 workers with 1 and 2 devices each, eagerly and compiled."""

import pytest
from tests.multiprocess.cases import cases_of, run_cases

from replicax import testing

MODULES = ("conformance_cases", "mismatch_cases", "training_cases")
CASES = [case for module in MODULES for case in cases_of(f"tests.multiprocess.{module}")]
QUICK = {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"}


# With 3 workers, what depends on their number; everything with --everything.
SOME = [case for case in CASES if "training" in case or "unequal" in case or "different" in case]


@pytest.mark.parametrize(
    ("workers", "devices", "cases"),
    [(2, 1, CASES), (2, 2, CASES), (3, 1, SOME), pytest.param(3, 1, CASES, marks=pytest.mark.long)],
    ids=["2x1", "2x2", "3x1-some", "3x1"],
)
def test_workers(workers, devices, cases, subtests):
    found = testing.run(
        run_cases, (cases,), num_workers=workers, devices_per_worker=devices, environment=QUICK
    )
    for case in cases:
        with subtests.test(case):
            for rank, failures in enumerate(found):
                assert case not in failures, f"rank {rank}:\n{failures[case]}"
