"""A report names what makes a step slow, and leaves the program as it is."""

import dataclasses
import itertools
import json
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.cli import main
from replicax.errors import ContextError
from replicax.execution import Function
from replicax.input import DistributedIterator

DEVICES = ["CPU:0", "CPU:1"]
LONG = 0.05
"""Seconds that are much longer than any of these steps, also on a busy machine."""


def make_training(strategy):
    with strategy.scope():
        w, optimizer = rx.Variable(jnp.ones((64, 64))), rx.Optimizer(optax.adam(1e-3))

    def replica_step(x):
        return optimizer.minimize(lambda: rx.compute_average_loss(jnp.mean(jnp.tanh(x @ w), axis=-1)), [w])

    @rx.function
    def train_step(x):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    return train_step, w


def batches(strategy, count=32, rows=8):
    return strategy.distribute_dataset(rx.from_arrays(np.ones((rows * count, 64), np.float32)).batch(rows))


@pytest.fixture(scope="module")
def training():
    strategy = rx.MirroredStrategy(DEVICES)
    return strategy, *make_training(strategy)


@pytest.fixture(scope="module")
def report(training):
    strategy, train_step, _ = training
    return rx.report(train_step, batches(strategy), num_steps=8)


def test_what_a_report_has(report):
    assert report.step == "train_step" and report.platform == "cpu"
    assert report.num_steps == 8 and list(report.devices) == DEVICES
    assert all(parts.total == pytest.approx(report.parts.total) for parts in report.devices.values())
    assert report.parts.compute > 0 and report.parts.collectives + report.parts.imbalance > 0
    assert report.parts.compilation == 0 and report.retraces == ()
    assert report.compilation.tracing > 0
    assert report.operations and report.operations[0].seconds <= report.parts.total
    assert [collective.kind for collective in report.collectives] == ["all-reduce"]


def test_a_report_as_text(report):
    text = str(report)
    for name in ("input wait", "host", "compilation", "imbalance", "collectives", "compute", *DEVICES):
        assert name in text
    assert re.search(r"one device alone takes [\d.]+ .s for its rows: 2 devices process [\d.]+ times", text)
    assert text.index("the most useful change") > text.index("compute")


def test_a_report_as_a_page(report, tmp_path):
    page = report.save(tmp_path / "report.html").read_text()
    (data,) = re.findall(r"^const data = (.*);$", page, re.MULTILINE)
    assert json.loads(data)["seconds"] == report.seconds
    assert report._repr_html_().startswith("<iframe")
    assert {part for _, _, _, part in report.timeline} <= {*vars(report.parts)}


def test_the_program_goes_on_as_before(training):
    strategy, train_step, w = training
    other_step, other = make_training(strategy)
    w.assign(jnp.ones((64, 64)))
    call, read = Function.__call__, DistributedIterator.__next__
    train_step, w = make_training(strategy)
    rx.report(train_step, batches(strategy), num_steps=4, num_warmup=2)
    assert Function.__call__ is call and DistributedIterator.__next__ is read
    for batch in itertools.islice(batches(strategy), 10):
        other_step(batch)
    np.testing.assert_array_equal(
        w.numpy(), other.numpy(), err_msg="2 + 4 + 4 real steps, and nothing else"
    )


def test_waiting_for_input_is_named(training):
    strategy, train_step, _ = training

    def slow():
        for batch in batches(strategy):
            time.sleep(LONG)
            yield batch

    found = rx.report(train_step, slow(), num_steps=4, compare=False)
    assert found.tips[0].part == "input" and found.parts.share("input") > 0.5
    assert found.parts.input > 0.5 * LONG
    assert "wait" in found.tips[0].text and "for input" in found.tips[0].text


def test_what_a_program_does_between_steps_is_named(training):
    strategy, train_step, _ = training

    def step(batch):
        time.sleep(LONG)
        train_step(batch)

    found = rx.report(step, batches(strategy), num_steps=4, compare=False)
    assert found.tips[0].part == "host" and found.host_between > 0.5 * LONG
    assert "between its steps" in found.tips[0].text


def test_a_replica_with_more_work_is_named():
    strategy = rx.MirroredStrategy(DEVICES)

    @rx.function
    def step(x):
        def replica_step(x):
            replica_id = rx.get_replica_context().replica_id_in_sync_group
            times = jnp.where(replica_id == 1, 1000, 1)
            x = jax.lax.fori_loop(0, times, lambda _, x: jnp.tanh(x @ x), x)
            return rx.get_replica_context().all_reduce("SUM", x)

        return strategy.run(replica_step, args=(x,))

    found = rx.report(step, [jnp.eye(32)] * 6, num_steps=4, num_warmup=2, compare=False)
    assert found.devices["CPU:0"].imbalance > found.devices["CPU:1"].imbalance
    assert found.devices["CPU:1"].compute > found.devices["CPU:0"].compute
    tips = {tip.part: tip for tip in found.tips}
    assert "CPU:1 computes" in tips["imbalance"].text


def test_retraces_are_named_with_their_cause():
    step = rx.function(lambda x: jnp.sum(jnp.tanh(x)))
    found = rx.report(step, [jnp.ones(size) for size in (3, 3, 4, 5, 6)], num_steps=3, num_warmup=2)
    causes = [f"<lambda>: argument 0 was float32[{n}] and is float32[{n + 1}]" for n in (3, 4, 5)]
    assert list(found.retraces) == causes
    assert found.tips[0].part == "compilation" and causes[0] in found.tips[0].text
    assert causes[2] in str(found)
    slower = dataclasses.replace(found, seconds_alone=found.seconds / 10)
    assert [tip.part for tip in slower.tips][:2] == ["compilation", "devices"]


def test_steps_in_one_program_are_counted():
    v = rx.Variable(jnp.zeros(100))
    step = rx.function(lambda x: v.assign_add(x))

    def five(batch):
        step.many([batch] * 5)

    found = rx.report(five, [jnp.ones(100)] * 5, num_steps=2, num_warmup=1)
    assert found.num_steps == 10 and float(v.value[0]) == 25
    assert found.retraces == ()


def test_state_that_is_sharded_is_compared_too():
    strategy = rx.ShardedStrategy(DEVICES, shard="all", min_shard_bytes=0)
    train_step, _ = make_training(strategy)
    found = rx.report(train_step, batches(strategy), num_steps=2, num_warmup=1)
    assert found.not_compared == "" and found.speedup is not None and found.speedup > 0


def test_without_a_compiled_function():
    with pytest.raises(ContextError, match=r"no function made by rx\.function was called"):
        rx.report(lambda x: x + 1, [jnp.ones(3)] * 10)


def test_too_few_batches():
    with pytest.raises(ContextError, match="was called 2 times, but a report needs at least 4 calls"):
        rx.report(rx.function(lambda x: x + 1), [jnp.ones(3)] * 2)


@pytest.mark.parametrize("batch", [jnp.ones((4, 3)), {"x": jnp.ones(3)}, np.ones(3), 7])
def test_one_batch_instead_of_many(batch):
    with pytest.raises(TypeError, match=r"iterable of batches, got .*`\[batch\] \* 50`"):
        rx.report(rx.function(lambda x: x), batch)


def test_a_step_is_a_function():
    with pytest.raises(TypeError, match="takes a function, the step, got 3"):
        rx.report(3, [1.0])


@pytest.mark.parametrize("options", [{"num_steps": 0}, {"num_warmup": True}])
def test_bad_numbers(options):
    with pytest.raises(ValueError, match="pass an integer, 1 or more"):
        rx.report(rx.function(lambda x: x), [], **options)


def test_while_another_profile_is_taken(tmp_path):
    step = rx.function(lambda x: x + 1)
    with rx.profile(tmp_path), pytest.raises(ContextError, match="profiler, which is already running"):
        rx.report(step, [jnp.ones(3)] * 10)


SCRIPT = """
import sys
import jax.numpy as jnp
import replicax as rx

total = rx.Variable(jnp.zeros(1000))

@rx.function
def add(x):
    total.assign_add(jnp.tanh(x))

for i in range(int(sys.argv[1])):
    add(jnp.ones(1000))
    print("step", i)
if sys.argv[1] == "2":
    raise KeyError("two")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_program(script, tmp_path, capsys):
    assert main(["report", "--steps", "5", "--output", "pages/page.html", script, "100"]) == 0
    printed = capsys.readouterr().out
    assert "step 11" in printed and "step 13" not in printed, "it is stopped after 3 + 5 + 5 steps"
    assert "add on 1 CPU device: " in printed and "while 5 steps were recorded" in printed
    assert (tmp_path / "pages" / "page.html").read_text().startswith("<!doctype html>")


def test_a_program_that_goes_on(script, capsys):
    assert main(["report", "--steps", "2", "--keep-going", script, "12"]) == 0
    printed = capsys.readouterr().out
    assert "step 11" in printed and "while 2 steps were recorded" in printed


def test_a_program_that_ends_early(script, capsys):
    assert main(["report", script, "6"]) == 0
    assert "while 3 steps were recorded" in capsys.readouterr().out
    assert main(["report", script, "3"]) == 2
    assert "add was called 3 times, but a report needs at least 4 calls" in capsys.readouterr().err


def test_a_program_that_fails(script, capsys):
    assert main(["report", script, "2"]) == 1
    assert "KeyError: 'two'" in capsys.readouterr().err
