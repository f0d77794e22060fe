"""`MultiWorkerMirroredStrategy` on 2 and 3 workers with 1 and 2 devices each, eagerly and compiled."""

import pytest
from tests.multiprocess.cases import cases_of, run_cases

from replicax import testing

MODULES = ("conformance_cases", "mismatch_cases", "training_cases")
CASES = [case for module in MODULES for case in cases_of(f"tests.multiprocess.{module}")]
QUICK = {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"}


@pytest.mark.parametrize(("workers", "devices"), [(2, 1), (2, 2), (3, 1)])
def test_workers(workers, devices, subtests):
    found = testing.run(
        run_cases, (CASES,), num_workers=workers, devices_per_worker=devices, environment=QUICK
    )
    for case in CASES:
        with subtests.test(case):
            for rank, failures in enumerate(found):
                assert case not in failures, f"rank {rank}:\n{failures[case]}"
