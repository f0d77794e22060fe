"""`rx.Tracker`: everything is written, in order, once, and nothing waits for a device without need."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorboardX  # here, since its import sets an environment variable
from tests.tracking.events import points

import replicax as rx
from replicax.errors import ContextError
from replicax.tracking import _tracker


@pytest.fixture
def written():
    return []


@pytest.fixture
def tracker(written):
    with rx.Tracker(
        writers=[lambda step, values: written.append((step, dict(values)))], every=3
    ) as tracker:
        yield tracker


def test_writes_every_so_many_calls_and_the_rest_at_the_end(tracker, written):
    tracker.log(1, loss=0.5)
    tracker.log(2, loss=0.25)
    assert not written
    tracker.log(3, loss=0.125)
    assert written == [(1, {"loss": 0.5}), (2, {"loss": 0.25}), (3, {"loss": 0.125})]
    tracker.log(4, loss=0.0)
    tracker.close()
    tracker.close()
    assert written[3:] == [(4, {"loss": 0.0})]


def test_takes_every_kind_of_number(tracker, written):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        iterations = rx.Variable(7, aggregation="ONLY_FIRST_REPLICA")
        count = rx.Variable(3, synchronization="ON_READ", aggregation="SUM")
    reduced = strategy.reduce("SUM", strategy.run(lambda: jnp.float32(2)), axis=None)
    mirrored = strategy.extended.reduce_to("SUM", strategy.run(lambda: jnp.float32(3)), iterations)
    tracker.log(
        iterations,
        {"train/loss": reduced, "half": jnp.bfloat16(0.5)},
        numpy=np.float64(1.5),
        flag=True,
        count=count,
        mirrored=mirrored,
    )
    tracker.flush()
    numbers = {"train/loss": 4, "half": 0.5, "numpy": 1.5, "flag": 1, "count": 6, "mirrored": 6}
    assert written == [(7, numbers)]
    assert all(type(number) is float for number in written[0][1].values())


def test_a_variable_is_taken_as_it_is_now(tracker, written):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = rx.Variable(1.0, aggregation="MEAN")

    @rx.function
    def step():
        strategy.run(lambda: w.assign_add(1.0))

    for i in range(5):
        tracker.log(i, w=w)
        step()  # which may reuse the variable's memory
    tracker.flush()
    assert [values["w"] for _, values in written] == [1, 2, 3, 4, 5]


class _Late:
    """An array that is ready when the test says so."""

    shape, ndim, dtype = (), 0, np.dtype("float32")

    def __init__(self):
        self.ready = False

    def is_ready(self):
        return self.ready

    def is_deleted(self):
        return False


def test_waits_only_for_what_is_far_behind(monkeypatch, tracker, written):
    monkeypatch.setattr(_tracker, "ArrayImpl", _Late)
    monkeypatch.setattr(_tracker, "is_number", lambda value: True)
    read = []

    def device_get(entries):
        read.extend(x for entry in entries for x in entry if isinstance(x, _Late))
        return [[0.0 if isinstance(x, _Late) else x for x in entry] for entry in entries]

    monkeypatch.setattr(jax, "device_get", device_get)
    late = [_Late() for _ in range(9)]
    for i in range(3):
        tracker.log(i, loss=late[i])
    assert not written and not read  # three steps behind: as many as may be
    late[0].ready = late[2].ready = True
    for i in range(3, 6):
        tracker.log(i, loss=late[i])
    assert [step for step, _ in written] == [0, 1, 2]  # 0 is ready; 1 is more than three behind; 2 is ready
    for i in range(6, 9):
        tracker.log(i, loss=late[i])
    assert [step for step, _ in written] == [0, 1, 2, 3, 4, 5]
    tracker.close()
    assert [step for step, _ in written] == list(range(9))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("0.5", TypeError, "takes numbers, but loss is '0.5' of type str"),
        (None, TypeError, "takes numbers, but loss is None"),
        (1j, TypeError, "takes numbers"),
        (np.complex64(1j), TypeError, "takes numbers"),
        (np.str_("0.5"), TypeError, "takes numbers"),
        (jax.random.key(0), TypeError, "takes numbers, but loss is .*key"),
        (np.ones(3), ValueError, r"loss has the shape \(3,\)"),
        (jnp.ones((1, 1)), ValueError, r"loss has the shape \(1, 1\)"),
    ],
)
def test_refuses_what_is_no_scalar(tracker, value, error, message):
    with pytest.raises(error, match=message):
        tracker.log(1, loss=value)


@pytest.mark.parametrize("values", [[1.0], 1.0, {1: 1.0}])
def test_refuses_what_has_no_name(tracker, values, written):
    with pytest.raises(TypeError, match="takes numbers by name"):
        tracker.log(1, values)
    tracker.log(2, loss=1.0)  # nothing is left behind
    tracker.flush()
    assert written == [(2, {"loss": 1.0})]


@pytest.mark.parametrize("writers", [print, [1], "logs"])
def test_refuses_writers_that_can_not_write(writers):
    with pytest.raises(TypeError, match="a list of functions"):
        rx.Tracker(writers=writers)


def test_refuses_a_value_for_each_replica(tracker):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(TypeError, match=r'strategy.reduce\("SUM", loss, axis=None\)'):
        tracker.log(1, loss=strategy.run(lambda: jnp.float32(1)))


def test_refuses_to_log_in_a_compiled_function(tracker):
    @rx.function
    def step(x):
        tracker.log(1, loss=x)
        return x

    with pytest.raises(ContextError, match="log it outside"):
        step(jnp.float32(1))


@pytest.mark.parametrize("every", [0, -1, 2.5, True])
def test_refuses_a_senseless_interval(every):
    with pytest.raises(ValueError, match="1 or more"):
        rx.Tracker(every=every)


def test_takes_an_interval_of_numpy(written):
    with rx.Tracker(writers=[lambda step, values: written.append(step)], every=np.int64(2)) as tracker:
        tracker.log(1, loss=1.0)
        tracker.log(2, loss=1.0)
        assert written == [1, 2]


def test_refuses_to_log_after_closing():
    tracker = rx.Tracker()
    tracker.close()
    with pytest.raises(ValueError, match="is closed"):
        tracker.log(1, loss=1.0)


class _FailsOnce:
    """A writer that raises at step 2, the first time."""

    def __init__(self):
        self.steps, self.has_failed = [], False

    def __call__(self, step, values):
        if step == 2 and not self.has_failed:
            self.has_failed = True
            raise OSError("no network")
        self.steps.append(step)


def test_a_writer_that_raises_gets_the_rest_the_next_time(written, tmp_path):
    before, fails, after = (lambda step, values: written.append(step)), _FailsOnce(), _FailsOnce()
    after.has_failed = True
    tracker = rx.Tracker(tensorboard=tmp_path, writers=[before, fails, after], every=3)
    tracker.log(1, loss=1.0)
    tracker.log(2, loss=2.0)
    with pytest.raises(OSError, match="no network"):
        tracker.log(3, loss=3.0)
    assert (written, fails.steps, after.steps) == ([1, 2], [1], [1])
    tracker.flush()
    tracker.close()
    assert written == fails.steps == after.steps == [1, 2, 3]
    (file,) = tmp_path.iterdir()
    assert points(file) == [("loss", 1, 1.0), ("loss", 2, 2.0), ("loss", 3, 3.0)]


def test_closing_again_writes_what_a_writer_has_refused():
    writer = _FailsOnce()
    tracker = rx.Tracker(writers=[writer])
    for step in (1, 2, 3):
        tracker.log(step, loss=1.0)
    with pytest.raises(OSError, match="no network"):
        tracker.close()
    tracker.flush()
    assert writer.steps == [1, 2, 3]


def test_a_donated_array_is_named_and_the_others_are_written(tracker, written):
    gone = jnp.float32(1) + 1
    tracker.log(4, loss=gone, rate=0.5)
    tracker.log(gone, loss=1.0)
    gone.delete()
    with pytest.raises(RuntimeError, match=r"loss of step 4, the step of loss: .*donated"):
        tracker.log(5, loss=0.25)
    assert written == [(4, {"rate": 0.5}), (5, {"loss": 0.25})]
    tracker.flush()


def test_a_step_that_is_no_number_stops_no_other(tracker, written):
    tracker.log(float("nan"), loss=1.0)
    tracker.log(2, loss=2.0)
    with pytest.raises(ValueError, match="the step nan"):
        tracker.flush()
    tracker.flush()
    assert written == [(2, {"loss": 2.0})]


def test_other_processes_write_nothing(monkeypatch, written, tmp_path, capsys):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    record = lambda step, values: written.append(step)  # noqa: E731
    with rx.Tracker(tensorboard=tmp_path / "logs", console=True, writers=[record], every=1) as tracker:
        tracker.log(1, loss=1.0)
        with pytest.raises(TypeError):
            tracker.log(2, loss="a mistake is one everywhere")
    assert not written
    assert not (tmp_path / "logs").exists()
    assert capsys.readouterr().out == ""


def test_tensorboard_shows_every_number(tmp_path):
    with rx.Tracker(tensorboard=tmp_path) as tracker:
        for step in range(25):
            tracker.log(step, {"train/loss": jnp.float32(step) / 2}, rate=float("nan"))
    (file,) = tmp_path.iterdir()
    found = points(file)
    assert [p[1:] for p in found if p[0] == "train/loss"] == [(step, step / 2) for step in range(25)]
    assert [p[1] for p in found if p[0] == "rate"] == list(range(25))


def test_two_trackers_do_not_write_into_one_file(tmp_path):
    for _ in range(2):
        with rx.Tracker(tensorboard=tmp_path) as tracker:
            tracker.log(1, loss=1.0)
    assert len(list(tmp_path.iterdir())) == 2


def test_tensorboard_sees_numbers_while_training_goes_on(tmp_path):
    with rx.Tracker(tensorboard=tmp_path, every=1) as tracker:
        tracker.log(1, loss=1.0)
        (file,) = tmp_path.iterdir()
        assert points(file) == [("loss", 1, 1.0)]


def test_a_missing_tensorboard_is_said_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, tensorboardX.__name__, None)
    with pytest.raises(ImportError, match=r"pip install 'replicax\[tensorboard\]'"):
        rx.Tracker(tensorboard="logs")


@pytest.mark.parametrize("folder", ["afile", "afile/logs"])
def test_a_bad_folder_is_said_at_once(tmp_path, folder):
    (tmp_path / "afile").touch()
    with pytest.raises(
        NotADirectoryError, match=r"rx.Tracker\(tensorboard=.*afile is a file. Pass a writable folder"
    ):
        rx.Tracker(tensorboard=tmp_path / folder)


def test_a_folder_without_permission_is_said_at_once_and_nothing_is_made(monkeypatch, tmp_path):
    rx.Tracker(tensorboard=tmp_path / "a" / "b").close()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=r"is not writable"):
        rx.Tracker(tensorboard=tmp_path / "a" / "b")


def test_an_address_is_left_to_the_library():
    rx.Tracker(tensorboard="gs://bucket/logs").close()


def test_the_end_of_the_program_writes_what_was_not_closed():
    program = """
import replicax as rx
tracker = rx.Tracker(console=True)
tracker.log(1, loss=0.5)
from replicax._jax import backends_are_initialized
assert not backends_are_initialized()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "step 1  loss 0.5\n"


# Files and services.


def test_a_csv_file_gets_a_column_for_each_name(tmp_path):
    path = tmp_path / "run" / "numbers.csv"
    with rx.Tracker(csv=path) as tracker:
        tracker.log(1, loss=0.5)
        tracker.log(2, {"eval/accuracy": 0.75}, loss=jnp.float32(0.25))
    with rx.Tracker(csv=path) as tracker:  # another run appends
        tracker.log(3, loss=0.125)
    assert path.read_text().splitlines() == ["step,loss,eval/accuracy", "1,0.5,", "2,0.25,0.75", "3,0.125,"]


def test_json_lines(tmp_path):
    path = tmp_path / "numbers.jsonl"
    for step in (1, 2):
        with rx.Tracker(json_lines=path) as tracker:
            tracker.log(step, loss=step / 2, gradient=np.inf)
    expected = [{"step": 1, "loss": 0.5, "gradient": None}, {"step": 2, "loss": 1.0, "gradient": None}]
    assert [json.loads(line) for line in path.read_text().splitlines()] == expected


def test_a_folder_is_refused_before_training(tmp_path):
    with pytest.raises(IsADirectoryError, match=r"csv=.*is a folder; pass the name of a file"):
        rx.Tracker(csv=tmp_path)


class Run:
    """What the writers use of a run of Weights & Biases, and of the module `mlflow`."""

    def __init__(self):
        self.logged = []

    def log(self, numbers, step):
        self.logged.append((step, numbers))

    log_metrics = log


def test_services_get_the_steps_that_are_printed(monkeypatch, capsys):
    run, mlflow = Run(), Run()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    with rx.Tracker(wandb=run, mlflow=True, console=True) as tracker:
        tracker.log(7, loss=0.5)
    assert run.logged == mlflow.logged == [(7, {"loss": 0.5})]
    assert capsys.readouterr().out == "step 7  loss 0.5\n"


def test_services_that_are_not_there():
    with pytest.raises(TypeError, match=r"wandb=5\): pass a run"):
        rx.Tracker(wandb=5)
    with pytest.raises(ImportError, match="mlflow"):
        rx.Tracker(mlflow=True)
    with pytest.raises(TypeError, match="mlflow='runs'"):
        rx.Tracker(mlflow="runs")
