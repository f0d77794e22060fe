"""Checkpoints that are restored before Keras has built its models, optimizers and metrics."""

import logging

import jax
import numpy as np
import pytest

keras = pytest.importorskip("keras")

import replicax as rx  # noqa: E402
from replicax.integrations.keras import strategy_of  # noqa: E402

from .keras_models import X, Y, assert_same, fit, make_model, strategy_of_kind  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")


class Branches(keras.Model):
    """Layers of equal shapes, which are built in another order than they are made."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4, activation="tanh")
        self.norm = keras.layers.BatchNormalization()
        self.second = keras.layers.Dense(4)
        self.last = keras.layers.Dense(Y.shape[-1] if Y.ndim > 1 else 1)

    def call(self, x, training=False):
        x = self.first(self.second(x))
        return self.last(self.norm(x, training=training))


def sequential():
    return keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)])


KINDS = {"subclass": Branches, "sequential": sequential}


def objects(kind, strategy):
    with strategy.scope():
        model = KINDS[kind]()
        model.compile(keras.optimizers.Adam(0.1), "mse")
    return model, rx.Checkpoint(model=model, optimizer=model.optimizer)


def trained(kind, strategy, folder):
    model, checkpoint = objects(kind, strategy)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    return model, checkpoint.save(folder)


def state(model):
    return [np.array(v) for v in (*model.variables, *model.optimizer.variables)]


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("sequential", "build"),
        ("sequential", "call"),
        ("sequential", "predict"),
        ("subclass", "call"),
        ("subclass", "predict"),
    ],
)
def test_a_model_that_is_built_after_the_restore_has_its_values(kind, by, tmp_path):
    model, path = trained(kind, strategy_of_kind(2), tmp_path)
    expected = model.predict(X, verbose=0)
    strategy = strategy_of_kind(2)
    other, checkpoint = objects(kind, strategy)
    status = checkpoint.restore(path)
    if by == "build":
        with strategy.scope():
            other.build(X.shape)
            other.optimizer.build(other.trainable_variables)
        status.assert_consumed()
    elif by == "call":
        with strategy.scope():
            assert_same(other(X), expected)
    assert_same(other.predict(X, verbose=0), expected)
    assert_same([np.array(v) for v in other.variables], [np.array(v) for v in model.variables])


@pytest.mark.parametrize("kind", KINDS)
def test_fit_goes_on_where_it_was(kind, tmp_path):
    model, path = trained(kind, strategy_of_kind(2), tmp_path)
    other, checkpoint = objects(kind, strategy_of_kind(2))
    status = checkpoint.restore(path)
    for one in (model, other):
        one.fit(X, Y, batch_size=4, epochs=1, verbose=0, shuffle=False)
    status.assert_consumed()
    assert_same(state(other), state(model))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_loop_of_ones_own_goes_on_where_it_was(compiled, tmp_path):
    """The tutorials' order: make the objects, restore, and let the first step build them."""

    def made():
        strategy = strategy_of_kind(2)
        with strategy.scope():
            model, optimizer = Branches(), keras.optimizers.Adam(0.1)
        loss_fn = keras.losses.MeanSquaredError(reduction="none")

        def replica_step(x, y):
            def loss(x, y):
                return rx.compute_average_loss(loss_fn(y, model(x, training=True)))

            model(x)
            value, gradients = rx.value_and_grad(loss, model.trainable_variables)(x, y)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return value

        def step(x, y):
            return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

        dataset = strategy.distribute_dataset(rx.from_arrays((X, Y)).batch(4).repeat())
        return model, optimizer, rx.function(step) if compiled else step, iter(dataset)

    model, optimizer, step, batches = made()
    checkpoint = rx.Checkpoint(model=model, optimizer=optimizer, batches=batches)
    with batches:
        for _ in range(3):
            step(*next(batches))
        path = checkpoint.save(tmp_path)
        expected = [float(step(*next(batches))) for _ in range(3)]
    other, other_optimizer, step, batches = made()
    with batches:
        status = rx.Checkpoint(model=other, optimizer=other_optimizer, batches=batches).restore(path)
        assert_same([float(step(*next(batches))) for _ in range(3)], expected)
        left = [path for path in status.unused if "model/layers/1/non_trainable" not in path]
    assert left == []  # the averages began with their combined value: the replicas' parts came too late
    assert_same(other.trainable_variables, model.trainable_variables)
    assert_same(other_optimizer.variables, optimizer.variables)


def test_each_replica_gets_its_own_averages(tmp_path):
    """Of batch normalization: they differ between replicas."""

    def made():
        strategy = strategy_of_kind(2)
        with strategy.scope():
            return strategy, keras.layers.BatchNormalization()

    def parts(strategy, layer):
        return [np.array(x) for v in layer.variables for x in strategy.local_results(v.replicax_variable)]

    strategy, layer = made()
    with strategy.scope():
        layer.build((None, 4))
    dataset = strategy.distribute_dataset(rx.from_arrays(X[:, :4]).batch(4))
    for x in dataset:
        strategy.run(lambda x: layer(x, training=True), args=(x,))
    path = rx.Checkpoint(layer=layer).save(tmp_path)
    other_strategy, other = made()
    status = rx.Checkpoint(layer=other).restore(path)
    with other_strategy.scope():
        other.build((None, 4))
    for here, there in zip(parts(other_strategy, other), parts(strategy, layer), strict=True):
        assert here.tobytes() == there.tobytes()
    status.assert_consumed()


def test_a_metric_and_a_seed_that_come_late(tmp_path):
    class Late(keras.layers.Layer):
        def build(self, shape):
            self.seed = keras.random.SeedGenerator(3)
            self.count = keras.Variable(0.0, trainable=False, name="count")

        def call(self, x):
            return x + self.count + keras.random.uniform(x.shape, seed=self.seed)

    strategy = strategy_of_kind(2)
    with strategy.scope():
        late, auc = Late(), keras.metrics.AUC(multi_label=True, num_thresholds=3)
        late(X)
        late.count.assign(5.0)
        auc.update_state(np.eye(4), np.eye(4) * 0.5)
    path = rx.Checkpoint(late=late, auc=auc).save(tmp_path)
    with strategy.scope():
        expected = np.array(late(X))
        other, other_auc = Late(), keras.metrics.AUC(multi_label=True, num_thresholds=3)
        status = rx.Checkpoint(late=other, auc=other_auc).restore(path)
        assert_same(other(X), expected)
        other_auc.update_state(np.eye(4), np.eye(4) * 0.2)
        auc.update_state(np.eye(4), np.eye(4) * 0.2)
    status.assert_consumed()
    assert_same(other_auc.variables, auc.variables)


# What nothing claims.


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and r.name == "replicax"]


def test_values_that_nothing_claims_are_named_by_the_next_save(tmp_path, caplog):
    _, path = trained("sequential", strategy_of_kind(2), tmp_path)
    strategy = strategy_of_kind(2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4)])
    checkpoint = rx.Checkpoint(model=model)
    checkpoint.restore(path)
    (line,) = warnings_in(caplog)
    assert "optimizer/" in line
    assert "model/" not in line
    with strategy.scope():
        model.build(X.shape)
    caplog.clear()
    checkpoint.save(tmp_path)
    checkpoint.save(tmp_path)
    (line,) = warnings_in(caplog)
    assert "model/layers/2/trainable/0" in line
    assert "model/layers/0" not in line
    assert "expect_partial()" in line


def test_models_from_outside_of_a_scope_are_distributed_while_values_are_pending(tmp_path):
    _, path = trained("sequential", strategy_of_kind(2), tmp_path)
    unbuilt = keras.Sequential([keras.layers.Dense(4)])
    rx.Checkpoint(model=unbuilt).restore(path)  # waits for the layers of `unbuilt`
    expected, model = make_model(), make_model()
    strategy = strategy_of_kind(2)
    with strategy.scope():
        losses = fit(model)["loss"]
    assert strategy_of(model) is strategy
    np.testing.assert_allclose(losses, fit(expected)["loss"], rtol=1e-5)


def test_plain_optimizers_in_a_trace_while_values_are_pending(tmp_path):
    _, path = trained("sequential", strategy_of_kind(2), tmp_path)
    unbuilt = keras.Sequential([keras.layers.Dense(4)])
    rx.Checkpoint(model=unbuilt).restore(path)

    def first_rate():
        return keras.optimizers.SGD(0.5).learning_rate.value

    assert jax.jit(first_rate)() == 0.5


def test_nothing_is_said_of_them_if_a_partial_restore_is_expected(tmp_path, caplog):
    model, path = trained("sequential", strategy_of_kind(2), tmp_path)
    strategy = strategy_of_kind(2)
    with strategy.scope():
        other = keras.Sequential([keras.layers.Dense(4)])
    checkpoint = rx.Checkpoint(model=other)
    checkpoint.restore(path).expect_partial()
    with strategy.scope():
        other.build(X.shape)
    checkpoint.save(tmp_path)
    assert not warnings_in(caplog)
    assert_same(other.variables, model.variables[:2])


def test_a_model_that_is_saved_before_it_is_built_loses_nothing(tmp_path, caplog):
    """A program that is stopped between its restore and its first step."""
    model, path = trained("subclass", strategy_of_kind(2), tmp_path)
    _, between = objects("subclass", strategy_of_kind(2))
    between.restore(path)
    path = between.save(tmp_path)
    assert not warnings_in(caplog)
    other, checkpoint = objects("subclass", strategy_of_kind(2))
    checkpoint.restore(path)
    other.predict(X, verbose=0)
    assert_same([np.array(v) for v in other.variables], [np.array(v) for v in model.variables])


def test_a_checkpoint_whose_variables_have_numbers_is_restored(tmp_path):
    """As earlier versions wrote them."""
    model, _ = trained("subclass", strategy_of_kind(2), tmp_path)
    content = rx.Checkpoint(model=model, optimizer=model.optimizer).content()
    entries = content.document["entries"]
    numbers = {
        id(v): f"{name}/{i}"
        for name, thing in (("model", model), ("optimizer", model.optimizer))
        for i, v in thing.checkpoint_items_by_number().items()
    }
    things = rx.checkpoint._checkpoint.track({"model": model, "optimizer": model.optimizer})
    names = {path: numbers[id(v)] for path, v in things.items()}
    content.document["entries"] = {names[path]: entry for path, entry in entries.items()}
    arrays = {
        path.replace(p, names[p]): x for path, x in content.arrays.items() for p in [path.split("//")[0]]
    }
    old = rx.checkpoint.Content(arrays, content.document)
    for built in (True, False):
        strategy = strategy_of_kind(2)
        other, checkpoint = objects("subclass", strategy)
        status = None if built else checkpoint.restore_content(old, "here")
        with strategy.scope():
            other(X)
            other.optimizer.build(other.trainable_variables)
        status = status or checkpoint.restore_content(old, "here")
        assert status.unused == []
        assert_same(state(other), state(model))
