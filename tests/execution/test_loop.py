"""Functions that are given a distributed dataset: a loop in Python around compiled replica functions."""

import contextlib
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax._jax import is_tracer
from replicax.errors import InputError
from replicax.execution._compiled import CompiledStep
from replicax.execution._function import Function

STRATEGIES = {
    "mirrored": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "one": lambda: rx.OneDeviceStrategy("CPU:1"),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


def distributed(strategy, count=8, batch_size=4):
    return strategy.distribute_dataset(rx.from_arrays(np.arange(float(count))).batch(batch_size))


def test_the_loop_runs_in_python_and_its_replicas_compiled(strategy):
    traced = []

    @rx.function
    def epoch(dataset):
        def replica_fn(x):
            traced.append(is_tracer(x))
            return jnp.sum(x)

        total = 0.0
        for batch in dataset:
            result = strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None)
            total += float(result)  # a number: this is Python
        return total

    dataset = distributed(strategy, count=40)
    assert epoch(dataset) == sum(range(40))
    calls = len(traced)
    assert all(traced) and calls <= 2, "traced once to find variables and once to compile"
    assert epoch(dataset) == sum(range(40))
    assert len(traced) == calls, "the function of the second call is the same code"


@pytest.mark.parametrize("in_scope", [True, False])
def test_later_steps_find_their_program_at_once(strategy, in_scope, monkeypatch):
    """As quickly as a step that is called without a loop: by the key of its arguments."""
    first_calls = []
    call_first = Function._call_first
    monkeypatch.setattr(Function, "_call_first", lambda *args: first_calls.append(1) or call_first(*args))

    def replica_fn(x):
        return jnp.sum(x)

    @rx.function
    def epoch(dataset):
        results = [strategy.run(replica_fn, args=(batch,)) for batch in dataset]
        return sum(float(strategy.reduce("SUM", result, axis=None)) for result in results)

    with strategy.scope() if in_scope else contextlib.nullcontext():
        assert epoch(distributed(strategy, count=40)) == sum(range(40))
    assert len(first_calls) == 2, "the loop itself, and the first step"


def test_the_program_of_a_step_is_made_once(strategy, monkeypatch):
    lowered = []
    lower = CompiledStep.lower
    monkeypatch.setattr(CompiledStep, "lower", lambda *args: lowered.append(1) or lower(*args))

    @rx.function
    def epoch(dataset):
        return [strategy.run(lambda x: jnp.sum(x), args=(batch,)) for batch in dataset]

    assert len(epoch(distributed(strategy, count=40))) == 10
    assert len(lowered) == 1


def test_an_iterator_is_read_where_it_is(strategy):
    @rx.function
    def two_steps(iterator, scale):
        return [
            strategy.reduce(
                "SUM", strategy.run(lambda x: scale * jnp.sum(x), args=(next(iterator),)), axis=None
            )
            for _ in range(2)
        ]

    with iter(distributed(strategy, count=16)) as iterator:
        assert [float(x) for x in two_steps(iterator, 2.0)] == [12.0, 44.0]
        assert [float(x) for x in two_steps(iterator, scale=2.0)] == [76.0, 108.0]


def test_variables_are_written(strategy):
    with strategy.scope():
        w = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
        steps = rx.Variable(0)

    @rx.function
    def epoch(dataset):
        for batch in dataset:
            strategy.run(lambda x: w.assign_add(jnp.sum(x)), args=(batch,))
            steps.assign_add(1)

    epoch(distributed(strategy))
    assert float(w) == 28.0 and int(steps) == 2


def test_training_is_the_same_as_with_steps(strategy):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3)).astype(np.float32)
    y = x @ np.array([1.0, 2.0, 3.0], np.float32)

    def train(make_epoch):
        with strategy.scope():
            w, optimizer = rx.Variable(jnp.zeros(3)), rx.Optimizer(optax.adam(0.1))

        def replica_step(x, y):
            def loss_fn():
                return rx.compute_average_loss((x @ w - y) ** 2)

            loss, gradient = rx.value_and_grad(loss_fn, w)()
            optimizer.apply_gradients([(gradient, w)])
            return loss

        epoch = make_epoch(replica_step)
        dataset = strategy.distribute_dataset(rx.from_arrays((x, y)).batch(8))  # the last one has 4 rows
        for _ in range(5):
            epoch(dataset)
        return w.numpy()

    def looping(replica_step):
        @rx.function
        def epoch(dataset):
            for batch in dataset:
                strategy.run(replica_step, args=batch)

        return epoch

    def stepping(replica_step):
        step = rx.function(lambda batch: strategy.run(replica_step, args=batch))
        return lambda dataset: [step(batch) for batch in dataset]

    np.testing.assert_array_equal(train(looping), train(stepping))


def test_what_changes_from_step_to_step_belongs_into_the_arguments(strategy, caplog):
    @rx.function
    def epoch(dataset):
        total = 0.0
        for batch in dataset:
            scale = jnp.float32(total + 1)  # another object each time
            result = strategy.run(lambda x, scale=scale: scale * jnp.sum(x), args=(batch,))
            total += float(strategy.reduce("SUM", result, axis=None))
        return total

    with caplog.at_level(logging.WARNING, "replicax"):
        result = epoch(distributed(strategy, count=12, batch_size=1))
    expected = 0.0
    for i in range(12):
        expected += (expected + 1) * i
    assert result == pytest.approx(expected, rel=1e-5), "right, compiled or not"
    (message,) = [
        record.getMessage() for record in caplog.records if "now runs eagerly" in record.getMessage()
    ]
    assert "args" in message and "<lambda>" in message


def test_functions_in_functions_count_as_the_same(strategy):
    traced = []

    @rx.function
    def epoch(dataset, exponent):
        def power(x):
            return x**exponent

        def replica_fn(x):
            traced.append(1)
            return jnp.sum(power(x))

        return [float(strategy.reduce("SUM", strategy.run(replica_fn, (x,)), axis=None)) for x in dataset]

    dataset = distributed(strategy, count=4)
    assert epoch(dataset, 2) == epoch(dataset, 2) == [14.0]
    calls = len(traced)
    assert epoch(dataset, 3) == [36.0], "another value is another program"
    assert len(traced) > calls


def test_recursive_functions(strategy):
    def sum_down(n, x):
        return jnp.sum(x) if n == 0 else sum_down(n - 1, x) + 1

    epoch = rx.function(lambda dataset: [strategy.run(lambda x: sum_down(2, x), (x,)) for x in dataset])
    assert len(epoch(distributed(strategy))) == 2


def test_methods(strategy):
    class Model:
        def __init__(self):
            with strategy.scope():
                self.w = rx.Variable(2.0)

        def replica_step(self, x):
            return self.w * jnp.sum(x)

        @rx.function
        def epoch(self, dataset):
            results = [strategy.run(self.replica_step, args=(x,)) for x in dataset]
            return sum(float(strategy.reduce("SUM", result, axis=None)) for result in results)

    model = Model()
    assert model.epoch(distributed(strategy)) == 56.0
    model.w.assign(1.0)
    assert model.epoch(distributed(strategy)) == 28.0


def test_errors_pass_and_leave_nothing_behind(strategy):
    @rx.function
    def epoch(dataset):
        for batch in dataset:
            strategy.run(lambda x: 1 / 0, args=(batch,))

    with pytest.raises(ZeroDivisionError):
        epoch(distributed(strategy))
    traced = []
    strategy.run(lambda: traced.append(is_tracer(jnp.zeros(1))))
    assert not any(traced), "outside of the loop replicas are eager again"


def test_a_dataset_that_is_not_given_is_refused(strategy):
    dataset = distributed(strategy)

    @rx.function
    def epoch(x):
        return [strategy.run(jnp.sum, args=(batch,)) for batch in dataset]

    with pytest.raises(InputError):
        epoch(jnp.zeros(1))


def test_other_arguments_are_compiled_as_before(strategy):
    @rx.function
    def step(x):
        assert is_tracer(x)
        return 2 * x

    assert isinstance(step(jnp.ones(2)), jax.Array)


def test_a_name_that_is_bound_anew_is_not_taken_for_what_it_was(strategy):
    @rx.function
    def epoch(dataset):
        results = []
        for i, batch in enumerate(dataset):
            scale = jnp.float32(i + 1)  # the previous one was freed, and this one may have its address
            result = strategy.run(lambda x: scale * jnp.sum(x), args=(batch,))  # noqa: B023
            results.append(float(strategy.reduce("SUM", result, axis=None)))
        return results

    dataset = strategy.distribute_dataset(rx.from_arrays(np.ones(24, np.float32)).batch(4))
    assert epoch(dataset) == epoch(dataset) == [4.0 * (i + 1) for i in range(6)]


def test_another_shape_sees_what_the_function_refers_to_now(strategy):
    one, two = jnp.float32(1), jnp.float32(2)

    @rx.function
    def epoch(dataset):
        scale, results = one, []
        for batch in dataset:
            result = strategy.run(lambda x: scale * jnp.sum(x), args=(batch,))
            results.append(float(strategy.reduce("SUM", result, axis=None)))
        scale = two
        return results

    def batches(size):
        return strategy.distribute_dataset(rx.from_arrays(np.ones(8, np.float32)).batch(size))

    assert epoch(batches(4)) == [4.0, 4.0] and epoch(batches(2)) == [2.0] * 4


def test_partial_functions_count_as_the_same(strategy):
    traced = []

    def replica_fn(scale, x):
        traced.append(1)
        return scale * jnp.sum(x)

    @rx.function
    def epoch(dataset):
        results = [strategy.run(functools.partial(replica_fn, 2.0), args=(x,)) for x in dataset]
        return [float(strategy.reduce("SUM", result, axis=None)) for result in results]

    assert epoch(distributed(strategy, count=24)) == [2.0 * sum(range(i, i + 4)) for i in range(0, 24, 4)]
    assert len(traced) <= 2


_FACTOR = 1.0


@pytest.mark.parametrize("where", ["closure", "global"])
def test_changes_of_what_a_function_refers_to_are_noticed(strategy, where, caplog):
    global _FACTOR
    settings = {"factor": [1.0]}
    _FACTOR = 1.0

    def from_closure(x):
        return jnp.sum(x) * settings["factor"][0]

    def from_global(x):
        return jnp.sum(x) * _FACTOR

    replica_fn = from_closure if where == "closure" else from_global

    @rx.function
    def epoch(dataset):
        global _FACTOR
        totals = []
        for x in dataset:
            totals.append(float(strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)))
            settings["factor"][0] += 1
            _FACTOR += 1
        return totals

    expected = [(step + 1) * sum(range(4 * step, 4 * step + 4)) for step in range(6)]
    assert epoch(distributed(strategy, count=24)) == expected
    assert "refers to something different in each step" in caplog.text
