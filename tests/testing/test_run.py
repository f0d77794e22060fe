"""`replicax.testing`: real processes, their results, errors and output, and faults at chosen points."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

import replicax as rx
from replicax import testing
from replicax.errors import RunFailedError


def add_up(start):
    """Each replica contributes its number, on all devices of all workers."""
    strategy = rx.MultiWorkerMirroredStrategy()
    numbers = strategy.run(lambda: jnp.float32(start + rx.get_replica_context().replica_id_in_sync_group))
    print("rank", testing.rank(), "printed this")
    return {
        "replicas": strategy.num_replicas_in_sync,
        "sum": float(strategy.reduce("SUM", numbers, axis=None)),
    }


def test_the_workers_of_a_cluster_return_their_results():
    found = testing.run(add_up, (10,), num_workers=2, devices_per_worker=2)
    assert found == [{"replicas": 4, "sum": 46.0}] * 2


class Unpicklable(ValueError):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def fail_in_many_ways():
    print(f"this is rank {testing.rank()}", file=sys.stderr)
    if testing.rank() == 0:
        raise Unpicklable("one", "two")
    if testing.rank() == 1:
        return lambda: None
    if testing.rank() == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(7)


def test_errors_have_the_remote_traceback_and_output():
    with pytest.raises(RunFailedError) as caught:
        testing.run(fail_in_many_ways, num_workers=4, grace_seconds=60)
    zero, one, two, three = caught.value.outcomes
    assert [outcome.status for outcome in (zero, two, three)] == [1, -signal.SIGTERM, 7]
    assert "Unpicklable: one and two" in str(zero.error) and isinstance(zero.error, RuntimeError)
    assert "fail_in_many_ways" in zero.traceback and 'raise Unpicklable("one", "two")' in zero.traceback
    assert isinstance(one.error, TypeError) and "returned a function" in str(one.error)
    assert isinstance(three.error, SystemExit)
    assert zero.output.startswith("this is rank 0")
    message = str(caught.value)
    for expected in ("rank 2 was killed by SIGTERM", "rank 3 failed with exit status 7", "this is rank 3"):
        assert expected in message


def fail_while_another_waits():
    if testing.rank() == 1:
        raise KeyError("the key")
    threading.Event().wait()


def test_the_first_failure_is_shown_and_the_others_are_stopped_with_their_stacks():
    with pytest.raises(RunFailedError) as caught:
        testing.run(fail_while_another_waits, num_workers=2, grace_seconds=3)
    zero, one = caught.value.outcomes
    assert isinstance(caught.value.__cause__, KeyError)
    assert str(caught.value).startswith("rank 1 failed with exit status 1")
    assert zero.stopped and not one.stopped
    assert "fail_while_another_waits" in zero.output  # the Python stack


def reach_points():
    testing.point("begin")
    start = time.monotonic()
    testing.point("middle")
    testing.point("end")
    return time.monotonic() - start


def test_faults_happen_to_their_rank_at_their_point():
    faults = [
        testing.kill(0, at="middle"),
        testing.stop(1, at="middle"),
        testing.delay(2, at="middle", seconds=0.5),
        testing.starve(3, at="end"),
    ]
    with testing.start(reach_points, num_workers=4, faults=faults) as workers:
        for rank in range(4):
            workers.wait_for("middle", rank)
        workers.wait_for("end", rank=3)
        with pytest.raises(RuntimeError, match="Rank 0 ended before the point 'end'; it reached"):
            workers.wait_for("end", rank=0)
        while workers.is_running(1) or workers.is_running(2):
            workers.resume(1)  # it may not have stopped yet when it is resumed
            time.sleep(0.05)
        killed, stopped, delayed, starved = workers.wait(timeout_seconds=0)
    assert (killed.status, killed.points) == (-signal.SIGKILL, ["begin", "middle"])
    assert (stopped.status, stopped.points) == (0, ["begin", "middle", "end"])
    assert delayed.value > 0.5
    assert starved.stopped and "in happen" in starved.output


def test_functions_that_other_processes_cannot_import_are_refused():
    with pytest.raises(TypeError, match="must be defined with `def` at the top level of a module"):
        testing.run(lambda: None)

    def local():
        pass

    with pytest.raises(TypeError, match="and not inside another function"):
        testing.run(local)
    with pytest.raises(TypeError, match="The arguments of add_up can't be sent"):
        testing.run(add_up, (lambda: None,))
    with pytest.raises(ValueError, match="num_workers must be an integer, 1 or more; got 0"):
        testing.run(add_up, num_workers=0)
    with pytest.raises(ValueError, match="there are 2 workers"):
        testing.run(add_up, faults=[testing.kill(2, at="x")])


SCRIPT = """\
import subprocess, sys, threading
from replicax import testing

def wait():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "GRANDCHILD"])
    testing.point("waiting")
    threading.Event().wait()

if __name__ == "__main__":
    with testing.start(wait, num_workers=2) as workers:
        for rank in range(2):
            workers.wait_for("waiting", rank)
        print(*[process.pid for process in workers._processes], flush=True)
        threading.Event().wait()
"""


def group_members(pid):
    """The processes of a process group, zombies not counted."""
    members = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            members.append(int(status.parent.name))
    return members


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_no_process_outlives_a_test_that_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        groups = [int(word) for word in parent.stdout.readline().split()]
        before = [len(group_members(group)) for group in groups]
        parent.kill()
    assert before == [2, 2]
    deadline = time.monotonic() + 30
    while any(map(group_members, groups)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [group_members(group) for group in groups] == [[], []]
