"""`PreemptionCheckpointHandler` in one process, and how several processes agree on where to stop."""

import os
import signal
import subprocess
import sys
import threading
import time

import jax
import pytest

import replicax as rx
from replicax.cluster import StoppingPoint, _stopping_point
from replicax.errors import CheckpointError


def send_sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def steps_until_exit(handler, step, most=100_000):
    """Steps until the handler ends the program; the exit status."""
    with pytest.raises(SystemExit) as caught:
        for _ in range(most):
            step.assign_add(1)
            time.sleep(0.001)
            handler.save_checkpoint_if_preempted()
    return caught.value.code


@pytest.fixture
def step():
    return rx.Variable(0)


def test_a_preempted_program_continues_where_it_was(step, tmp_path):
    with rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), tmp_path) as handler:
        assert handler.preemption_message is None
        send_sigterm()
        assert steps_until_exit(handler, step) == 0
        assert handler.preemption_message == "Process 0 will be ended (SIGTERM)"
    stopped = int(step.read_value())
    step.assign(0)
    with rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), tmp_path):
        assert int(step.read_value()) == stopped


def test_closing_gives_the_signal_back(step, tmp_path):
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), tmp_path) as handler:
            send_sigterm()
            assert steps_until_exit(handler, step) == 0
        assert not received
        send_sigterm()
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_run_stops_before_a_step_and_counts(step, tmp_path):
    def add(x, *, times):
        return int(step.assign_add(x * times))

    manager = rx.CheckpointManager(rx.Checkpoint(step=step), tmp_path, prefix="ckpt-")
    with rx.PreemptionCheckpointHandler(None, manager) as handler:
        assert [handler.run(add, 2, times=3) for _ in range(2)] == [6, 12]
        send_sigterm()
        with pytest.raises(SystemExit):
            while True:
                handler.run(add, 1, times=1)
                time.sleep(0.001)
        count = handler.total_run_calls
    assert int(step.read_value()) == 12 + count - 2
    assert len(manager.checkpoints) == 1
    with rx.PreemptionCheckpointHandler(None, manager) as handler:
        handler.run(add, 1, times=1)
        assert handler.total_run_calls == count + 1


def test_a_program_may_go_on_after_it_was_saved(step, tmp_path):
    saved, exited, told = [], [], []
    config = rx.TerminationConfig(
        termination_watcher_fn=lambda: bool(told),
        exit_fn=lambda: (exited.append(True), told.clear()),
        save_fn=lambda *args, **kwargs: saved.append((args, kwargs)),
    )
    with rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), tmp_path, config) as handler:
        for expected in (1, 2):
            told.append(True)
            while len(exited) < expected:
                handler.save_checkpoint_if_preempted(7, force=True)
                time.sleep(0.001)
    assert saved == [((7,), {"force": True})] * 2


def test_training_goes_on_for_a_part_of_the_grace_period(step, tmp_path):
    config = rx.TerminationConfig(grace_period=1.5, exit_fn=lambda: sys.exit(75))
    with rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), tmp_path, config) as handler:
        began = time.monotonic()
        send_sigterm()
        assert steps_until_exit(handler, step) == 75
        assert time.monotonic() - began >= 0.8


def test_the_scope_saves_at_its_end(step, tmp_path):
    with rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), tmp_path) as handler:
        with handler.watch_preemption_scope():
            send_sigterm()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with handler.watch_preemption_scope():
                    time.sleep(0.001)
            except SystemExit:
                break
        assert os.listdir(tmp_path)


def test_an_error_of_the_watching_function_is_raised_at_the_next_point(step, tmp_path):
    def watch():
        raise OSError("no metadata server")

    config = rx.TerminationConfig(termination_watcher_fn=watch)
    with (
        rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), tmp_path, config) as handler,
        pytest.raises(OSError, match="no metadata server"),
    ):
        while True:
            handler.save_checkpoint_if_preempted()
            time.sleep(0.001)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, lambda step: rx.Checkpoint(step=step)), CheckpointError, "no checkpoint_dir"),
        ((None, lambda step: step, "here"), TypeError, "a Checkpoint or a CheckpointManager second"),
        (("worker", lambda step: rx.Checkpoint(step=step), "here"), TypeError, "cluster resolver first"),
        (
            (None, lambda step: rx.CheckpointManager(rx.Checkpoint(step=step), "here"), "there"),
            CheckpointError,
            "the manager saves in .*here. Leave out checkpoint_dir",
        ),
    ],
    ids=["no folder", "no checkpoint", "no resolver", "two folders"],
)
def test_wrong_arguments(step, arguments, error, message):
    resolver, make, *folder = arguments
    with pytest.raises(error, match=message):
        rx.PreemptionCheckpointHandler(resolver, make(step), *folder)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"grace_period": -1}, ValueError), ({"exit_fn": 3}, TypeError), ({"save_fn": "save"}, TypeError)],
)
def test_wrong_settings(options, error):
    with pytest.raises(error, match=next(iter(options))):
        rx.TerminationConfig(**options)


# Several processes.


class Cluster:
    """Processes that are threads here, with what they have published."""

    def __init__(self, monkeypatch, count):
        self.told, self.published = [False] * count, {}
        self._own = threading.local()
        monkeypatch.setattr(jax, "process_index", lambda: self._own.process)
        monkeypatch.setattr(jax, "process_count", lambda: count)
        monkeypatch.setattr(_stopping_point, "publish", self._publish)
        monkeypatch.setattr(_stopping_point, "all_published", lambda topic: self.published.get(topic, {}))
        self.points = [self._point(process) for process in range(count)]

    def _point(self, process):
        self._own.process = process

        def is_told():
            self._own.process = process  # of the thread that watches
            return self.told[process]

        return StoppingPoint(is_told, lambda seconds: 0.0)

    def _publish(self, topic, message):
        self.published[topic] = {**self.published.get(topic, {}), self._own.process: message}

    def close(self):
        for process, point in enumerate(self.points):
            self._own.process = process
            point.close()


@pytest.fixture
def cluster(monkeypatch):
    made = []
    yield lambda count: made.append(Cluster(monkeypatch, count)) or made[-1]
    for cluster in made:
        cluster.close()


def pass_points(point, most):
    """Pass points until all stop; the number that were passed."""
    for passed in range(most):
        if point.reached():
            return passed
        time.sleep(0.001)
    return most


@pytest.mark.parametrize("told", [0, 2])
def test_all_processes_stop_at_the_point_that_none_has_passed(cluster, told):
    processes = cluster(3)
    for point, ahead in zip(processes.points, (0, 3, 1), strict=True):
        assert pass_points(point, ahead) == ahead  # they are not equally far when the notice comes
    processes.told[told] = True
    while not all(point.message for point in processes.points):
        time.sleep(0.001)
    assert [pass_points(point, 10) for point in processes.points] == [3, 0, 2]
    assert {point.message.split(" (")[0] for point in processes.points} == {f"Process {told} will be ended"}


def test_a_process_at_the_end_of_its_program_holds_nobody_up(cluster):
    processes = cluster(2)
    assert pass_points(processes.points[0], 5) == 5
    processes._own.process = 0
    processes.points[0].close()
    assert pass_points(processes.points[1], 3) == 3
    processes.told[1] = True
    while not processes.points[1].message:
        time.sleep(0.001)
    assert pass_points(processes.points[1], 2) == 2  # the rest of the same program


def test_processes_may_stop_again(cluster):
    processes = cluster(2)
    for generation in range(2):
        processes.told[generation] = True
        while not all(point.message for point in processes.points):
            time.sleep(0.001)
        assert [pass_points(point, 10) for point in processes.points] == [0, 0]
        processes.told[generation] = False
        for point in processes.points:
            point.resume()
        assert [pass_points(point, 2) for point in processes.points] == [2, 2]


def test_the_watcher_remembers_who_will_be_ended(step, tmp_path):
    watcher = rx.PreemptionWatcher()
    handler = rx.PreemptionCheckpointHandler(None, rx.Checkpoint(step=step), tmp_path)  # both are told
    try:
        watcher.block_until_worker_exit()
        assert watcher.preemption_message is None
        send_sigterm()
        deadline = time.monotonic() + 60
        while watcher.preemption_message is None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert watcher.preemption_message == "Process 0 will be ended (SIGTERM)"
        assert steps_until_exit(handler, step) == 0
    finally:
        handler.close()
        watcher.close()


ENDING = """
import atexit, os, signal, tempfile
import replicax as rx

atexit.register(os.kill, os.getpid(), signal.SIGTERM)  # runs after those that are registered later
handler = {handler}
"""


@pytest.mark.parametrize(
    "handler",
    [
        "rx.PreemptionWatcher()",
        "rx.PreemptionCheckpointHandler(None, rx.Checkpoint(v=rx.Variable(1.0)), tempfile.mkdtemp())",
    ],
)
def test_a_notice_to_a_program_that_has_finished_is_no_failure(handler, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", ENDING.format(handler=handler)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
