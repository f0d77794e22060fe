"""`python -m replicax launch`. Most scripts here are plain Python: starting JAX takes most of the time."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.testing.test_run import group_members

from replicax.cli import main

PREAMBLE = """\
import json, os, signal, sys, threading, time
config = json.loads(os.environ["TF_CONFIG"])
rank, num_workers = config["task"]["index"], len(config["cluster"]["worker"])
restart = int(os.environ["REPLICAX_RESTART_COUNT"])
"""


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Launches a script in this process: the exit status, the lines of output and of error output."""

    def run(script, *options, arguments=()):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        log_dir = ["--log-dir", str(tmp_path / "logs")]
        status = main(["launch", *options, *log_dir, str(path), *arguments])
        printed = capfd.readouterr()
        return status, printed.out.splitlines(), printed.err.splitlines()

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr("replicax.launch._attempt._SECONDS_TO_LEAVE", 1.0)
    monkeypatch.setattr("replicax.launch._attempt._SECONDS_TO_TERMINATE", 1.0)
    return run


def test_output_has_ranks_and_each_worker_its_place_and_log(run, tmp_path):
    script = """
        print(json.dumps([config, os.environ["JAX_NUM_CPU_DEVICES"], sys.argv[1:]]))
        print("to the", end=" ", file=sys.stderr)
        print("error output", file=sys.stderr)
        print("no end of line", end="")
    """
    status, out, err = run(
        script, "--workers", "2", "--devices-per-worker", "3", arguments=["--workers", "9"]
    )
    assert status == 0
    found = {line[:10]: json.loads(line[11:]) for line in out if line.endswith("]")}
    for rank in range(2):
        config, devices, arguments = found[f"[worker {rank}]"]
        assert [address.startswith("127.0.0.1:") for address in config["cluster"]["worker"]] == [True] * 2
        assert config["task"] == {"type": "worker", "index": rank, "num_accelerators": {"CPU": 3}}
        assert (devices, arguments) == ("3", ["--workers", "9"])
        assert f"[worker {rank}] no end of line" in out
        assert f"[worker {rank}] to the error output" in err
        log = (tmp_path / "logs" / f"worker_{rank}.log").read_text()
        assert "to the error output\n" in log and "no end of line\n" in log
    assert found["[worker 0]"][0]["cluster"] == found["[worker 1]"][0]["cluster"]
    assert err[0] == f"replicax launch: 2 workers with 3 CPU devices each; logs in {tmp_path / 'logs'}"


def test_the_first_failure_is_shown_last_and_gives_the_status(run):
    script = """
        class MyError(Exception):
            def __init__(self):
                super().__init__("the reason")
        if rank == 1:
            try:
                {}["key"]
            except KeyError as error:
                raise MyError from error
        print("waiting")
        time.sleep(1)  # in Python: SIGTERM ends it
        sys.exit(3)
    """
    status, _, err = run(script, "--workers", "3")
    assert status == 1
    shown = "\n".join(err)
    summary, last = shown.split("---- worker 1 ended with:\n")
    assert "replicax launch: worker 1 failed with exit status 1 after" in summary
    assert last.startswith("Traceback (most recent call last):")
    assert "KeyError: 'key'" in last and "direct cause" in last and last.endswith("MyError: the reason")


def test_a_worker_that_failed_because_of_another_is_not_blamed(run):
    script = """
        if rank == 0:
            message = "rank 1 failed\\nIts traceback:\\nTraceback (most recent call last):\\nValueError"
            raise type("WorkerFailedError", (Exception,), {"__module__": "replicax.errors"})(message)
        time.sleep(0.5)
        sys.exit("no traceback")
    """
    status, _, err = run(script, "--workers", "2")
    assert status == 1
    assert err[-2:] == ["---- worker 1 ended with:", "no traceback"]


def test_a_worker_that_is_killed_gives_128_plus_the_signal_and_stuck_ones_are_ended(run):
    script = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    """
    status, _, err = run(script, "--workers", "2")
    assert status == 137
    assert any("worker 1 was killed by SIGKILL" in line for line in err)


def test_all_workers_are_restarted_with_new_ports(run, tmp_path):
    script = """
        print("start", restart, rank, num_workers, config["cluster"]["worker"][rank])
        assert os.path.basename(os.environ["JAX_COMPILATION_CACHE_DIR"]) == "compiled"
        if restart < 2 and rank == restart:
            raise ValueError("failed")
        if restart < 2:
            time.sleep(600)
    """
    status, out, err = run(script, "--workers", "2", "--max-restarts", "2")
    assert status == 0
    starts = [line.split()[2:] for line in out if " start " in line]
    assert sorted(start[1:4] for start in starts) == sorted([[n, r, "2"] for n in "012" for r in "01"])
    assert len({start[4] for start in starts}) == 6
    assert "restart 1 of 2 with 2 workers with 1 CPU device each" in "\n".join(err)
    assert (tmp_path / "logs/worker_0.log").read_text().count("start ") == 3


def test_restarts_are_limited(run, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    status, out, err = run("print('start'); sys.exit(5)", "--workers", "1", "--max-restarts", "1")
    assert status == 5
    assert out.count("[worker 0] start") == 2
    assert "worker 0 failed with exit status 5" in err[-3]
    assert err[1] == "replicax launch: TF_CONFIG is set; the workers get their own instead"


def test_a_worker_that_keeps_failing_is_left_out(run, tmp_path):
    script = """
        print("start", rank, num_workers)
        if num_workers == 3 and rank == 1:
            sys.exit("broken")
        if num_workers == 3:
            time.sleep(600)
    """
    status, out, _ = run(script, "--workers", "3", "--min-workers", "2", "--max-restarts", "5")
    assert status == 0
    assert sorted(line.split()[3:] for line in out) == sorted(
        2 * [[r, "3"] for r in "012"] + [[r, "2"] for r in "01"]
    )
    assert (tmp_path / "logs/workers").read_text() == "2\n"


def test_the_number_of_workers_can_be_changed_while_they_run(run, tmp_path):
    script = f"""
        wanted = {str(tmp_path / "logs/workers")!r}
        print("start", restart, num_workers)
        if restart == 2:
            sys.exit(0)
        if rank == 0:
            for text in ["many", str(3 - num_workers)]:
                with open(wanted, "w") as file:
                    file.write(text)
                time.sleep(1.2)
        time.sleep(600)
    """
    status, out, err = run(script, "--workers", "2", "--min-workers", "1")
    assert status == 0
    assert [line.split()[3:] for line in out] == [
        ["0", "2"],
        ["0", "2"],
        ["1", "1"],
        ["2", "2"],
        ["2", "2"],
    ]
    assert "has 'many', which is not a number of workers from 1 (--min-workers)" in "\n".join(err)


def test_an_interrupt_is_passed_on(run):
    script = """
        try:
            if rank == 0:
                time.sleep(0.3)
                os.kill(os.getppid(), signal.SIGINT)
            time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted")
            raise
    """
    status, out, err = run(script, "--workers", "2")
    assert status == 130
    assert sorted(out) == ["[worker 0] interrupted", "[worker 1] interrupted"]
    assert err[-1] == "replicax launch: SIGINT: the workers were stopped"


def test_a_second_interrupt_kills(run):
    script = """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for _ in range(2):
            time.sleep(0.5)
            os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)
    """
    start = time.monotonic()
    status, _, _ = run(script, "--workers", "1", "--max-restarts", "3", "--grace-period", "300")
    assert status == 130
    assert time.monotonic() - start < 60


def test_workers_that_end_well_after_a_sigterm_are_a_success(run):
    script = """
        def end(number, frame):
            print("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        if rank == 0:
            time.sleep(0.5)
            os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)
    """
    status, out, err = run(script, "--workers", "2", "--max-restarts", "3")
    assert status == 0
    assert sorted(out) == ["[worker 0] saved", "[worker 1] saved"]
    assert err[-1] == "replicax launch: SIGTERM: all workers ended by themselves"


def test_workers_that_ignore_a_sigterm_are_killed_after_the_grace_period(run):
    script = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(0.3)
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)
    """
    status, _, _ = run(script, "--workers", "1", "--grace-period", "0.2")
    assert status == 143


def test_the_launchers_handlers_are_removed(run):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert run("pass", "--workers", "1")[0] == 0
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_no_process_outlives_a_launcher_that_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(os.getpid())\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "replicax", "launch", "--workers", "2", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        groups = [int(launcher.stdout.readline().split()[-1]) for _ in range(2)]
        before = [len(group_members(group)) for group in groups]
        launcher.kill()
    assert before == [2, 2]
    deadline = time.monotonic() + 30
    while any(map(group_members, groups)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [group_members(group) for group in groups] == [[], []]


def test_a_module_can_be_launched(capfd):
    assert main(["launch", "--workers", "1", "-m", "json.tool", os.devnull]) == 1
    assert "Expecting value" in capfd.readouterr().err
    assert main(["launch", "--workers", "1", "-m", "platform"]) == 0
    assert capfd.readouterr().out.startswith("[worker 0] ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.py"], "there is no file 'train.py'"),
        ([__file__], "--workers N is required"),
        ([__file__, "--workers", "2"], "--workers N is required before the script"),
        (["--workers", "0", __file__], "argument --workers: expected an integer, 1 or more, got '0'"),
        (["--workers", "2"], "no program: pass a script, or -m and a module"),
        (["--workers", "2", "-m"], "-m needs the name of a module"),
        (["--workers", "2", "-m", "no.such"], "there is no module 'no.such'"),
        (["--wrokers", "2", __file__], "unrecognized arguments: --wrokers"),
        (["--workers", "2", "--min-workers", "3", __file__], "--min-workers 3 is more than --workers 2"),
        (["--workers", "2", "--max-restarts", "-1", __file__], "expected an integer, 0 or more"),
        (["--workers", "2", "--grace-period", "soon", __file__], "expected a number of seconds"),
    ],
)
def test_mistakes_are_explained(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["launch", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}, "srun --ntasks-per-node=1 python"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, "a pod of a Kubernetes Job"),
        ({"RAY_JOB_ID": "1"}, "replicax.integrations.ray.run"),
    ],
)
def test_cluster_managers_start_workers_themselves(variables, message, monkeypatch, capsys, tmp_path):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        main(["launch", "--workers", "2", __file__])
    assert message in capsys.readouterr().err
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["launch", "--workers", "1", "--force", str(script)]) == 0
