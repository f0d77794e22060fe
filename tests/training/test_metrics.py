"""Metrics: updated by replicas without communication, combined when they are read."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CollectiveError, TracingError, VariableError

from .helpers import close, collectives, each, mirrored, parts, rid

PARTIAL = ["exact", "pad"]
X = np.arange(1.0, 12.0, dtype=np.float32)  # eleven rows in batches of eight: eight, then three
SCORES = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(4, size=11).astype(np.int32)

METRICS = {
    "mean": (rx.Mean, lambda m, b: m.update_state(b["x"]), lambda: np.mean(X)),
    "weighted": (
        rx.Mean,
        lambda m, b: m.update_state(b["x"], sample_weight=b["x"] % 3),
        lambda: np.sum(X * (X % 3)) / np.sum(X % 3),
    ),
    "sum": (rx.Sum, lambda m, b: m.update_state(b["x"]), lambda: np.sum(X)),
    "accuracy": (
        rx.Accuracy,
        lambda m, b: m.update_state(b["label"], jnp.argmax(b["scores"], axis=-1)),
        lambda: np.mean(SCORES.argmax(-1) == LABELS),
    ),
    "categorical": (
        rx.SparseCategoricalAccuracy,
        lambda m, b: m.update_state(b["label"], b["scores"]),
        lambda: np.mean(SCORES.argmax(-1) == LABELS),
    ),
    "columns": (
        rx.SparseCategoricalAccuracy,
        lambda m, b: m.update_state(b["label"][:, None], b["scores"]),
        lambda: np.mean(SCORES.argmax(-1) == LABELS),
    ),
    "squares": (
        rx.MeanSquaredError,
        lambda m, b: m.update_state(b["scores"], 2 * b["scores"]),
        lambda: np.mean(SCORES**2),
    ),
    "weighted_squares": (
        rx.MeanSquaredError,
        lambda m, b: m.update_state(b["scores"], 2 * b["scores"], sample_weight=b["x"]),
        lambda: np.sum(X * np.mean(SCORES**2, axis=1)) / np.sum(X),
    ),
}


def data():
    return rx.from_arrays({"x": X, "scores": SCORES, "label": LABELS}).batch(8)


@pytest.mark.parametrize("partial_batch", PARTIAL)
@pytest.mark.parametrize("name", METRICS)
def test_compiled_replicas_measure_what_one_device_measures(name, partial_batch):
    make, update, expected = METRICS[name]
    for strategy in (mirrored(3), mirrored(8), rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")):
        with strategy.scope():
            metric = make()
        step = rx.function(lambda b, s=strategy, m=metric: s.run(lambda b: update(m, b), args=(b,)))
        for batch in strategy.distribute_dataset(data(), rx.InputOptions(partial_batch=partial_batch)):
            step(batch)
        close(metric.result(), expected())


@pytest.mark.parametrize("partial_batch", PARTIAL)
@pytest.mark.parametrize("name", ["weighted", "categorical"])
def test_every_strategy_measures_what_one_device_measures(name, partial_batch, strategy, mode):
    make, update, expected = METRICS[name]
    with strategy.scope():
        metric = make()
    step = mode(lambda b: strategy.run(lambda b: update(metric, b), args=(b,)))
    for _ in range(2):
        for batch in strategy.distribute_dataset(data(), rx.InputOptions(partial_batch=partial_batch)):
            step(batch)
    close(metric.result(), expected())
    metric.reset_state()
    assert metric.result() == 0


@pytest.mark.parametrize("name", METRICS)
def test_without_a_strategy(name, mode):
    make, update, expected = METRICS[name]
    metric = make()
    step = mode(lambda x, scores, label: update(metric, {"x": x, "scores": scores, "label": label}))
    step(X[:8], SCORES[:8], LABELS[:8])
    step(X[8:], SCORES[8:], LABELS[8:])
    close(metric.result(), expected())


@pytest.mark.parametrize("name", METRICS)
def test_a_compiled_update_has_no_collective_and_a_result_has_one_at_most_for_each_weight(name):
    make, update, _ = METRICS[name]
    strategy = mirrored(4)
    with strategy.scope():
        metric = make()
    batch = {
        "x": each(strategy, lambda i: X[:2]),
        "scores": each(strategy, lambda i: SCORES[:2]),
        "label": each(strategy, lambda i: LABELS[:2]),
    }
    step = rx.function(lambda b: strategy.run(lambda b: update(metric, b), args=(b,)))
    assert collectives(step, batch) == []
    found = collectives(rx.function(metric.result))
    assert 1 <= len(found) <= len(metric.variables)


@pytest.mark.parametrize("name", METRICS)
def test_an_eager_update_meets_no_other_replica(name, monkeypatch):
    make, update, _ = METRICS[name]
    strategy = mirrored(2)
    with strategy.scope():
        metric = make()
    batch = {"x": X[:2], "scores": SCORES[:2], "label": LABELS[:2]}

    def refuse(*_, **__):
        raise AssertionError("an update is local")

    monkeypatch.setattr(rx.ReplicaContext, "merge_call", refuse)
    strategy.run(lambda: update(metric, batch))


def test_a_replica_sees_its_own_part(two, mode):
    with two.scope():
        metric = rx.Mean()

    def replica_fn():
        metric.update_state(rid() + jnp.array([1.0, 2.0]))
        return metric.result()

    own = mode(lambda: two.run(replica_fn))()
    close(np.stack(parts(two, own)), [1.5, 2.5])
    close(metric.result(), 2.0)


def test_metrics_are_updated_inside_a_differentiated_function(several, mode):
    n = several.num_replicas_in_sync
    with several.scope():
        w, metric = rx.Variable(2.0), rx.Mean("loss")

    def replica_fn():
        def loss():
            metric.update_state(w * (rid() + 1.0))
            return w**2

        return rx.grad(loss, w)()

    step = mode(lambda: several.run(replica_fn))
    step()
    step()
    close(metric.result(), n + 1.0)


def test_the_result_before_the_first_value_is_zero(strategy):
    with strategy.scope():
        for make in (rx.Mean, rx.Sum, rx.Accuracy, rx.SparseCategoricalAccuracy, rx.MeanSquaredError):
            assert make().result() == 0


def test_values_without_weight_count_for_nothing_even_if_they_are_no_numbers(mode):
    metric, total = rx.Mean(), rx.Sum()

    @mode
    def step(x, weights):
        metric.update_state(x, sample_weight=weights)
        total.update_state(x, sample_weight=weights)

    step(jnp.array([1.0, jnp.nan, 3.0]), jnp.array([1.0, 0.0, 1.0]))
    assert metric.result() == 2.0
    assert total.result() == 4.0


def test_a_value_that_is_no_number_is_not_hidden():
    metric = rx.Mean()
    metric.update_state(jnp.array([1.0, jnp.nan]))
    assert np.isnan(metric.result())


def test_numbers_and_scalars_are_values(two, mode):
    with two.scope():
        metric = rx.Mean()
    step = mode(lambda: two.run(lambda: metric.update_state(3.0, sample_weight=2)))
    step()
    close(metric.result(), 3.0)
    close(metric.count.read_value(), 4.0)


def test_reset_begins_anew_compiled_too(several, mode):
    with several.scope():
        metric = rx.Mean()
    several.run(lambda: metric.update_state(rid() + 1.0))
    with several.scope():
        mode(metric.reset_state)()
    several.run(lambda: metric.update_state(5.0))
    close(metric.result(), 5.0)


def test_a_metric_of_ones_own(several, mode):
    class Confusion(rx.Metric):
        def __init__(self):
            super().__init__("confusion")
            self.counts = self.add_weight("counts", (2, 2), jnp.int32)

        def update_state(self, y_true, y_pred):
            ones = jnp.zeros((2, 2), jnp.int32).at[y_true, y_pred].add(1)
            self.counts.assign_add(ones)

        def result(self):
            return self.counts.read_value()

    with several.scope():
        metric = Confusion()
    step = mode(
        lambda: several.run(lambda: metric.update_state(jnp.array([0, 1, 1]), jnp.array([0, 1, 0])))
    )
    step()
    n = several.num_replicas_in_sync
    np.testing.assert_array_equal(metric.result(), [[n, 0], [n, n]])
    assert metric.variables == [metric.counts]
    assert repr(metric) == "<Confusion 'confusion'>"


def test_a_metric_without_a_result_is_refused():
    with pytest.raises(TypeError, match="abstract"):
        rx.Metric("nothing")


# Shapes that TensorFlow makes equal, and that must not be spread out against each other.


def test_predictions_in_a_column_are_compared_with_labels_in_a_row():
    error, accuracy = rx.MeanSquaredError(), rx.Accuracy()
    labels, predictions = jnp.array([1.0, 2.0, 3.0]), jnp.array([[1.0], [2.0], [5.0]])
    error.update_state(labels, predictions)
    accuracy.update_state(labels, predictions)
    close(error.result(), 4 / 3)
    close(accuracy.result(), 2 / 3)


def test_weights_in_a_column_are_those_of_the_examples():
    metric = rx.Mean()
    metric.update_state(jnp.array([1.0, 2.0, 4.0]), sample_weight=jnp.array([[1.0], [0.0], [0.5]]))
    close(metric.result(), 2.0)


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        (jnp.array([1, 0, 1]), jnp.array([[0.1, 0.9]]), r"y_true has shape \(3,\)"),
        (
            jnp.array([[0.0, 1.0], [1.0, 0.0]]),
            jnp.array([[0.1, 0.9], [0.2, 0.8]]),
            r"\(2, 2\).*one-hot.*jnp.argmax",
        ),
        (
            jnp.array([[0.1, 0.9], [0.2, 0.8]]),
            jnp.array([1, 0]),
            r"\(2, 2\).*\(2,\).*swapped.*labels first",
        ),
        (jnp.array([[0.1, 0.9], [0.2, 0.8]]), jnp.array([[1], [0]]), r"swapped.*labels first"),
    ],
)
def test_sparse_labels_that_do_not_fit_are_refused(labels, scores, message):
    accuracy = rx.SparseCategoricalAccuracy()
    with pytest.raises(CollectiveError, match=message):
        accuracy.update_state(labels, scores)
    assert float(accuracy.result()) == 0.0


# Metrics of one's own in padded batches.


class Count(rx.Metric):
    """How many rows there are, without padding."""

    def __init__(self):
        super().__init__("count")
        self.count = self.add_weight("count")

    def update_state(self, x, *, example_mask=None):
        self.count.assign_add(jnp.sum(jnp.ones(x.shape[0]), where=example_mask))

    def result(self):
        return self.count.read_value()


class Anything(Count):
    """Whose arguments are those of another metric."""

    def update_state(self, *args, **kwargs):
        super().update_state(*args, **kwargs)


class Unaware(Count):
    def update_state(self, x):
        super().update_state(x)


def padded(strategy, mode, update):
    step = mode(lambda b: strategy.run(update, args=(b,)))
    for batch in strategy.distribute_dataset(data(), rx.InputOptions(partial_batch="pad")):
        step(batch)


@pytest.mark.parametrize("make", [Count, Anything])
def test_a_metric_of_ones_own_receives_the_mask(make, two, mode):
    with two.scope():
        metric = make()
    padded(two, mode, lambda b: metric.update_state(b["x"]))
    close(metric.result(), 11.0)
    two.run(lambda: metric.update_state(jnp.ones(3)))  # no padding here
    close(metric.result(), 17.0)


def test_a_metric_that_would_count_padding_is_refused_on_the_first_batch(two, mode):
    with two.scope():
        metric = Unaware()
    with pytest.raises(CollectiveError, match=r"Unaware.update_state.*example_mask"):
        padded(two, mode, lambda b: metric.update_state(b["x"]))
    assert metric.result() == 0
    two.run(lambda: metric.update_state(jnp.ones(3)))
    close(metric.result(), 6.0)


def test_a_mask_that_is_passed_is_the_one(two, mode):
    with two.scope():
        mean, count = rx.Mean(), Count()

    def update(b):
        mean.update_state(jnp.arange(7.0), example_mask=None)  # one for each class, not for each row
        count.update_state(b["x"], example_mask=b["x"] > 3)

    padded(two, mode, update)
    close(mean.result(), 3.0)
    close(count.result(), 16.0 - 3.0)  # padding repeats the last row


def test_flattened_values_of_a_padded_batch_are_refused_on_the_first_batch(two, mode):
    with two.scope():
        mean = rx.Mean()
    with pytest.raises(CollectiveError, match=r"16 values.*padded batch of 4 rows.*reshape\(4, -1\)"):
        padded(two, mode, lambda b: mean.update_state(b["scores"].reshape(-1)))


def test_an_eager_replica_may_update_a_metric_with_arrays_in_jax_grad():
    strategy = mirrored(2)
    with strategy.scope():
        w, total = rx.Variable(2.0), rx.Sum()

    def replica_step():
        def loss(w):
            total.update_state(jnp.ones(3))  # does not depend on w, so it is not traced
            return 3 * w

        return jax.grad(loss)(w.value)

    assert [float(g) for g in parts(strategy, strategy.run(replica_step))] == [3.0, 3.0]
    assert total.result() == 6.0


def test_a_metric_in_jax_grad_is_refused_with_advice_that_works(mode):
    strategy = mirrored(2)
    with strategy.scope():
        w, mean = rx.Variable(2.0), rx.Mean()

    def loss(w):
        mean.update_state(w)
        return 3 * w

    with pytest.raises(TracingError, match=r"rx\.value_and_grad\(fn, variables\)"):
        mode(lambda: strategy.run(lambda: jax.grad(loss)(w.value)))()
    mode(lambda: strategy.run(lambda: rx.value_and_grad(lambda: loss(w.value), w)()))()
    assert float(mean.result()) == 2.0


def test_an_update_outside_of_replicas_says_how_to_run_it_in_them(mode):
    strategy = mirrored(2)
    with strategy.scope():
        mean = rx.Mean("loss")
    for where in (contextlib.nullcontext(), strategy.scope()):
        with where, pytest.raises(VariableError, match=r"strategy\.run\(loss\.update_state, args="):
            mode(lambda: mean.update_state(3.0))()
