"""The doctor: its findings on this machine, and that a failing check does not stop it."""

import json
import os
import runpy
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from replicax import _native
from replicax.cli import _check_computing, _check_devices, _check_packages, _doctor, main
from replicax.cli._check import Check, failed, passed, run_check, skipped
from replicax.cli._checks import all_checks

# A patient process whose checks do what their names say.
PATIENT = """
import json, os, sys, time
print("ready", flush=True)
for name in sys.argv[1:]:
    if name == "hang":
        time.sleep(600)
    if name == "abort":
        print("a word", file=sys.stderr); print("CUDA is on fire", file=sys.stderr, flush=True)
        os.abort()
    if name == "exit":
        sys.exit(3)
    finding = {"status": "pass", "detail": "", "advice": "", "numbers": {}}
    print(json.dumps({"name": name, "seconds": 0, **finding}), flush=True)
"""


def run_doctor(*arguments, **environment):
    command = [sys.executable, "-m", "replicax", "doctor", *arguments]
    kept = {name: x for name, x in os.environ.items() if name not in ("PJRT_NPROC", "XLA_FLAGS")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=kept | environment
    )


def check_named(name):
    (check,) = [check for check in all_checks() if check.name == name]
    return check


def test_nothing_fails_here_and_machines_can_read_it():
    result = run_doctor("--json")
    assert result.returncode == 0, result.stdout
    report = json.loads(result.stdout)
    findings = {check["name"]: check for check in report["checks"]}
    assert list(findings) == [check.name for check in all_checks()]
    assert report["failed"] == 0
    assert report["passed"] + report["skipped"] == len(findings)
    for dtype in ("float32", "bfloat16", "int32"):
        finding = findings[f"all-reduce {dtype}"]
        assert finding["status"] == "pass" and finding["numbers"]["gigabytes_per_second"] > 0
    strategies = [name for name in findings if name.startswith("training")]
    assert len(strategies) == 5 and all(findings[name]["status"] == "pass" for name in strategies)
    assert findings["training MirroredStrategy"]["numbers"]["replicas"] == 4


def test_a_bad_environment_is_found_and_said_in_lines():
    result = run_doctor("--only", "cluster", "python", TF_CONFIG="{not JSON")
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["pass", "fail", "->"]
    assert "ClusterFormatError" in lines[1] and "Correct the variables" in lines[2]
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"


def test_hangs_and_crashes_are_findings_and_the_others_go_on():
    names = ["fine", "hang", "also fine", "abort", "exit", "fine again"]
    checks = [Check(name, lambda: passed(""), 0.5 if name == "hang" else 30, "Do this.") for name in names]
    began = time.perf_counter()
    results = list(_doctor.examine(checks, [sys.executable, "-c", PATIENT]))
    assert time.perf_counter() - began < 200  # the check that hangs would take 600 seconds
    assert [result.name for result in results] == names
    assert [result.finding.status for result in results] == ["pass", "fail", "pass", "fail", "fail", "pass"]
    _, hang, _, abort, exit, _ = (result.finding for result in results)
    assert hang.detail == "did not finish within 0.5 s"
    assert (
        abort.detail == "the process that ran it was killed by SIGABRT. Its last message: CUDA is on fire"
    )
    assert exit.detail == "the process that ran it exited with status 3"
    assert hang.advice == "Do this."


def test_a_patient_that_never_gets_ready(monkeypatch):
    monkeypatch.setattr(_doctor, "_START_SECONDS", 0.3)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    (result,) = _doctor.examine([Check("any", lambda: passed(""))], command)
    assert result.finding.status == "fail"
    command = [sys.executable, "-c", "raise ImportError('no such jax')"]
    monkeypatch.setattr(_doctor, "_START_SECONDS", 30)
    (result,) = _doctor.examine([Check("any", lambda: passed(""))], command)
    assert "ImportError: no such jax" in result.finding.detail


def test_an_exception_is_a_finding():
    result = run_check(Check("division", lambda: passed(str(1 / 0)), advice="Divide by something else."))
    assert result.finding.status == "fail"
    assert result.finding.detail.startswith("ZeroDivisionError: division by zero (test_doctor.py:")
    assert result.finding.advice == "Divide by something else."


@pytest.mark.parametrize(
    ("finding", "status"), [(passed("yes"), 0), (skipped("no"), 0), (failed("no", "do"), 1)]
)
def test_exit_status(monkeypatch, capsys, finding, status):
    result = run_check(Check("a check", lambda: finding))
    monkeypatch.setattr(_doctor, "examine", lambda checks: iter([result]))
    assert main(["doctor"]) == status
    assert finding.detail in capsys.readouterr().out
    assert main(["doctor", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["failed"] == status


def test_an_unknown_check_is_refused(capsys):
    assert main(["doctor", "--only", "teapot"]) == 2
    assert "no check has teapot in its name. Checks: Python, JAX" in capsys.readouterr().err


def test_a_wrong_sum_is_found(monkeypatch):
    monkeypatch.setattr(_check_computing, "_all_reduce", lambda *args, **kwargs: (True, 1.0))
    finding = check_named("all-reduce float32").find()
    assert finding.status == "fail" and "wrong sum" in finding.detail


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_wrong_weights_are_found(monkeypatch, wrong):
    monkeypatch.setattr(_check_computing, "_train_without_replicax", lambda: wrong)
    finding = check_named("training MirroredStrategy").find()
    assert finding.status == "fail" and "differ" in finding.detail


def test_a_folder_that_can_not_be_written_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    result = run_check(check_named("checkpoint"))
    assert result.finding.status == "fail" and "TMPDIR" in result.finding.advice


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    # As in a new process, where nothing is imported yet.
    checks = {c.name: c for c in runpy.run_path(_check_computing.__file__)["computing_checks"]()}
    finding = run_check(checks["training MirroredStrategy"]).finding
    assert (finding.status, finding.detail) == ("fail", "optax is not installed")
    assert finding.advice == "pip install --upgrade optax"
    finding = run_check(checks["checkpoint"]).finding
    assert (finding.status, finding.detail) == ("fail", "orbax.checkpoint is not installed")
    assert finding.advice == "pip install --upgrade orbax-checkpoint"


def test_platforms_that_are_not_there_are_named(monkeypatch):
    def devices():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    finding = run_check(check_named("devices")).finding
    assert (finding.status, finding.detail) == ("fail", "JAX_PLATFORMS is cuda, which JAX can't use here")
    assert finding.advice.startswith("Unset JAX_PLATFORMS")
    for name in ("TPU", "all-reduce int32", "training OneDeviceStrategy", "checkpoint", "input"):
        finding = run_check(check_named(name)).finding
        assert (finding.status, finding.detail) == ("fail", "JAX has no devices")
        assert "doctor --only devices" in finding.advice


def test_gpus_that_jax_does_not_see_are_found(monkeypatch, tmp_path):
    (tmp_path / "0000:00:04.0").mkdir()
    monkeypatch.setattr(_check_devices, "_NVIDIA_DRIVER", tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    finding = check_named("devices").find()
    assert finding.status == "fail" and "jax[cuda" in finding.advice
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert check_named("devices").find().status == "pass"


def test_too_few_threads_are_found(monkeypatch):
    monkeypatch.setattr(_check_devices, "collectives_must_wait", lambda devices: True)
    finding = check_named("threads of CPU devices").find()
    assert finding.status == "fail" and "rx.set_cpu_devices(8)" in finding.advice


def test_clusters_in_the_environment(monkeypatch):
    cluster = '{"cluster": {"worker": ["localhost:1", "%s:2"]}, "task": {"type": "worker", "index": 1}}'
    monkeypatch.setenv("TF_CONFIG", cluster % "127.0.0.1")
    finding = check_named("cluster").find()
    assert finding.status == "pass" and finding.detail.startswith("TFConfigClusterResolver: ")
    assert "worker 1 (127.0.0.1:2), process 1 of 2; all connect to localhost:1" in finding.detail
    finding = check_named("training MultiWorkerMirroredStrategy").find()
    assert finding.status == "skipped" and "TF_CONFIG has 2 workers" in finding.detail
    monkeypatch.setenv("TF_CONFIG", cluster % "no-such-host.invalid")
    finding = check_named("cluster").find()
    assert finding.status == "fail" and "no-such-host.invalid:2 can't be resolved" in finding.detail
    monkeypatch.setenv("TF_CONFIG", "{not JSON")
    assert run_check(check_named("cluster")).finding.status == "fail"


def test_the_launcher_of_a_cluster_is_named(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert "this process runs alone" in check_named("cluster").find().detail
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    finding = check_named("cluster").find()
    assert finding.status == "skipped" and "TorchrunClusterResolver()" in finding.advice
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    finding = check_named("cluster").find()
    assert finding.status == "pass"
    assert finding.detail.startswith("TorchrunClusterResolver: this is worker 1 (unknown), process 1 of 2;")
    assert finding.detail.endswith("all connect to localhost:29500")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert run_check(check_named("cluster")).finding.status == "fail"  # no list of nodes


def test_a_cluster_of_one_worker_is_tried(monkeypatch):
    weights = np.zeros(8)
    monkeypatch.setattr(_check_computing, "_train", lambda strategy: weights)
    monkeypatch.setattr(_check_computing, "_train_without_replicax", lambda: weights)
    check = check_named("training MultiWorkerMirroredStrategy")
    one = '{"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}'
    for config in ("{}", one):
        monkeypatch.setenv("TF_CONFIG", config)
        assert check.find().status == "pass"
    monkeypatch.setenv("TF_CONFIG", "{not JSON")
    finding = check.find()
    assert finding.status == "skipped" and "TF_CONFIG has an invalid cluster" in finding.detail


def test_a_tpu_that_jax_does_not_see_is_found(monkeypatch):
    assert check_named("TPU").find().status == "skipped"
    monkeypatch.setenv("TPU_NAME", "local")
    assert check_named("TPU").find().status == "fail"


def test_calls_in_python_are_reported(monkeypatch):
    monkeypatch.setattr(_native, "is_built", False)
    finding = check_named("calls of compiled steps").find()
    assert finding.status == "skipped" and "C compiler" in finding.advice
    monkeypatch.setattr(_native, "is_built", True)
    assert check_named("calls of compiled steps").find().status == "pass"


def test_versions_and_extras(monkeypatch):
    assert check_named("extra grain").find().status == "pass"
    monkeypatch.setattr(_check_packages, "_installed", {"numpy": "1.0"}.get)
    finding = check_named("extra grain").find()
    assert finding.status == "skipped" and "pip install 'replicax[grain]'" in finding.advice
    finding = check_named("required packages").find()
    assert finding.status == "fail" and "optax is not installed" in finding.detail
    monkeypatch.setattr(jax, "__version__", "0.9.1.dev2")
    finding = check_named("JAX").find()
    assert finding.status == "fail" and "0.9.1.dev2 is older than 0.10" in finding.detail
